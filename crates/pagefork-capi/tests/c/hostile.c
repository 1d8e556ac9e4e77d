/* What a hostile or careless embedder does: callbacks that delete what they are in, calls that never
 * end going deeper, finalizers that call back, a forked process, signals, other engines and kinds. */

#define _DEFAULT_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

static const char text[] =
    "(module (import \"host\" \"f\" (func $f (param i32) (result i32)))"
    " (memory (export \"memory\") 1)"
    " (func (export \"run\") (param i32) (result i32) (call $f (local.get 0)))"
    " (func (export \"spin\") (param i32) (result i32) (local i32)"
    "  (loop $again (local.set 1 (i32.add (local.get 1) (i32.const 1)))"
    "   (br_if $again (i32.lt_u (local.get 1) (local.get 0)))) (local.get 1)))";

static wasm_engine_t *engine;
static wasm_store_t *store;
static wasm_module_t *module;
static wasm_instance_t *instance;
static pagefork_linker_t *linker;
static wasm_extern_t *run;
static pagefork_typed_func_t *typed;
static int finalized, deepest;

static void finalize(void *counter) { ++*(int *)counter; }

static wasm_functype_t *new_type(void) {
  return wasm_functype_new_1_1(wasm_valtype_new_i32(), wasm_valtype_new_i32());
}

static wasm_extern_t *export_of(const char *name) {
  wasm_extern_t *external;
  OK(pagefork_instance_export(instance, name, &external));
  return external;
}

/* Makes everything with a host function, and little stack. */
static void make(pagefork_func_callback_t function) {
  wasm_config_t *config = wasm_config_new();
  pagefork_config_stack_size(config, 1 << 16);
  OK(pagefork_engine_new(config, &engine));
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  OK(pagefork_linker_new(engine, &linker));
  wasm_functype_t *type = new_type();
  OK(pagefork_linker_func(linker, "host", "f", type, function, &finalized, finalize));
  wasm_functype_delete(type);
  store = wasm_store_new(engine);
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  run = export_of("run");
}

static void delete_all(void) {
  wasm_extern_delete(run);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
}

static pagefork_error_t *call(int32_t value, int32_t *result) {
  pagefork_val_t arg = {WASM_I32, {.i32 = value}}, out = {WASM_I32, {.i32 = 0}};
  pagefork_error_t *error = pagefork_func_call(wasm_extern_as_func(run), &arg, 1, &out, 1);
  *result = out.of.i32;
  return error;
}

/* Deletes all that there is, its own function included, and returns. */
static pagefork_error_t *delete_everything(const pagefork_caller_t *caller,
                                           const pagefork_val_t *args, size_t count,
                                           pagefork_val_t *results, size_t result_count) {
  (void)count, (void)result_count;
  delete_all();
  CHECK(finalized == 0 && caller->env == &finalized);
  results[0] = args[0];
  return args[0].of.i32 < 0 ? pagefork_error_new("negative") : NULL;
}

/* Calls itself through the guest for as long as there is room. */
static pagefork_error_t *deeper(const pagefork_caller_t *caller, const pagefork_val_t *args,
                                size_t count, pagefork_val_t *results, size_t result_count) {
  (void)caller, (void)count, (void)result_count;
  int32_t depth = args[0].of.i32, result;
  if (depth > deepest) deepest = depth;
  results[0] = args[0];
  return call(depth + 1, &result);
}

/* Asks for what belongs to another engine or is of another kind. */
static pagefork_error_t *wrong(const pagefork_caller_t *caller, const pagefork_val_t *args,
                               size_t count, pagefork_val_t *results, size_t result_count) {
  (void)count, (void)result_count;
  wasm_instance_t *none;
  FAILS(pagefork_store_reset(caller->store, NULL), "runs");
  FAILS(pagefork_store_snapshot(caller->store, &(pagefork_snapshot_t *){NULL}), "runs");
  FAILS(pagefork_store_fork(caller->store, NULL, NULL, 0), "runs");
  FAILS(pagefork_store_abandon(caller->store), "runs");
  bool suspended;
  FAILS(pagefork_store_resume(caller->store, NULL, 0, &suspended), "runs");
  FAILS(pagefork_func_call_async(wasm_extern_as_func(run), args, 1, NULL, NULL, NULL,
                                 &(pagefork_call_t *){NULL}),
        "runs");
  pagefork_val_t result;
  FAILS(pagefork_func_call_suspendable(wasm_extern_as_func(run), args, 1, &result, 1, &suspended),
        "");
  FAILS(pagefork_linker_instantiate(linker, caller->store, (wasm_module_t *)run, &none), "needed");
  results[0] = args[0];
  return NULL;
}

/* What is attached asks for its thing when it is finalized. */
static void call_back(void *object) {
  int32_t result;
  pagefork_error_t *error = call(1, &result);
  if (error) wasm_trap_delete(error);
  CHECK(!wasm_instance_get_host_info((wasm_instance_t *)object));
  ++finalized;
}

static pagefork_error_t *echo(const pagefork_caller_t *caller, const pagefork_val_t *args,
                              size_t count, pagefork_val_t *results, size_t result_count) {
  (void)caller, (void)count, (void)result_count;
  results[0] = args[0];
  return NULL;
}

static int signals;

static void on_signal(int number) {
  (void)number;
  ++signals;
  pagefork_engine_increment_epoch(engine);
}

/* Calls of a store by one thread after the other, and stores of an engine by several at once. */
static void *spawn_and_call(void *pre) {
  for (int i = 0; i < 200; i++) {
    wasm_store_t *own;
    wasm_instance_t *spawned;
    wasm_extern_t *external;
    OK(pagefork_instance_pre_spawn((pagefork_instance_pre_t *)pre, NULL, &own, &spawned));
    OK(pagefork_instance_export(spawned, "run", &external));
    pagefork_val_t arg = {WASM_I32, {.i32 = i}}, result;
    OK(pagefork_func_call(wasm_extern_as_func(external), &arg, 1, &result, 1));
    CHECK(result.of.i32 == i);
    wasm_extern_delete(external);
    wasm_instance_delete(spawned);
    wasm_store_delete(own);
  }
  return NULL;
}

/* Gives a reference, and fails. */
static wasm_trap_t *give_and_fail(const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  CHECK(results->data[1].kind == WASM_EXTERNREF);
  results->data[1].of.ref = wasm_ref_copy(args->data[0].of.ref);
  return pagefork_error_new("it fails");
}

/* What a callback gives is taken over, also where it fails: nothing keeps the store. */
static void results_of_failures(void) {
  wasm_engine_t *own_engine = wasm_engine_new();
  wasm_store_t *own_store = wasm_store_new(own_engine);
  wasm_module_t *own_module = COMPILE(own_store, references);
  wasm_importtype_vec_t imports;
  wasm_module_imports(own_module, &imports);
  wasm_func_t *func = wasm_func_new(
      own_store, wasm_externtype_as_functype_const(wasm_importtype_type(imports.data[0])),
      give_and_fail);
  wasm_importtype_vec_delete(&imports);
  wasm_extern_t *import = wasm_func_as_extern(func);
  wasm_extern_vec_t list = {1, &import};
  wasm_instance_t *own = keep(wasm_instance_new(own_store, own_module, &list, NULL));
  /* Of another kind, and of another store. */
  wasm_store_t *other_store = wasm_store_new(own_engine);
  wasm_limits_t limits = {1, 1};
  wasm_memorytype_t *type = wasm_memorytype_new(&limits);
  wasm_memory_t *memory = wasm_memory_new(other_store, type);
  wasm_memorytype_delete(type);
  wasm_trap_t *trap = NULL;
  import = wasm_memory_as_extern(memory);
  CHECK(!wasm_instance_new(own_store, own_module, &list, &trap));
  TRAPS(trap, "a memory of one store was used with another store");
  wasm_memory_delete(memory);
  wasm_store_delete(other_store);
  wasm_func_delete(func);
  wasm_foreign_t *foreign = wasm_foreign_new(own_store);
  int before = finalized;
  wasm_foreign_set_host_info_with_finalizer(foreign, &finalized, finalize);
  pagefork_val_t args[2] = {{WASM_EXTERNREF, {.ref = wasm_foreign_as_ref(foreign)}},
                            {WASM_FUNCREF, {.ref = NULL}}};
  pagefork_val_t results[2];
  FAILS(pagefork_func_call(find_func(own_module, own, "pass"), args, 2, results, 2), "it fails");
  wasm_foreign_delete(foreign);
  delete_kept();
  wasm_store_delete(own_store);
  CHECK(finalized == before + 1);
  wasm_engine_delete(own_engine);
}

int main(void) {
  results_of_failures();
  finalized = 0;
  int32_t result;

  /* A callback that deletes all there is: what it is in goes when it has returned. */
  for (int32_t value = -1; value <= 1; value += 2) {
    finalized = 0;
    make(delete_everything);
    pagefork_error_t *error = call(value, &result);
    CHECK((error != NULL) == (value < 0));
    if (error) FAILS(error, "negative");
    else CHECK(result == value);
    CHECK(finalized == 1);
  }

  make(deeper);
  FAILS(call(0, &result), "call stack exhausted");
  CHECK(deepest > 10);
  delete_all();

  make(wrong);
  OK(call(7, &result));
  CHECK(result == 7);
  delete_all();

  /* A finalizer that calls the guest whose store is reset, and of which nothing is left. */
  finalized = 0;
  make(echo);
  wasm_instance_set_host_info_with_finalizer(instance, instance, call_back);
  OK(pagefork_store_reset(store, NULL));
  CHECK(finalized == 1);
  OK(call(3, &result));
  CHECK(result == 3);

  /* Objects of another engine. */
  wasm_engine_t *other = wasm_engine_new();
  wasm_store_t *stranger = wasm_store_new(other);
  wasm_instance_t *none;
  FAILS(pagefork_linker_instantiate(linker, stranger, module, &none), "engine");
  pagefork_linker_t *other_linker;
  OK(pagefork_linker_new(other, &other_linker));
  FAILS(pagefork_linker_instantiate(other_linker, store, module, &none), "engine");
  FAILS(pagefork_linker_instantiate_pre(other_linker, module, &(pagefork_instance_pre_t *){NULL}),
        "");
  OK(pagefork_linker_unknown_imports_as_traps(linker, module));
  pagefork_linker_delete(other_linker);
  wasm_store_delete(stranger);
  wasm_engine_delete(other);

  /* Several threads. */
  pagefork_instance_pre_t *pre;
  OK(pagefork_linker_instantiate_pre(linker, module, &pre));
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, spawn_and_call, pre));
  for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));

  /* A process that has forked: each has the guest as it was. */
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    OK(call(11, &result));
    wasm_store_t *own;
    wasm_instance_t *spawned;
    OK(pagefork_instance_pre_spawn(pre, NULL, &own, &spawned));
    _exit(result == 11 ? 0 : 1);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(call(12, &result));
  CHECK(result == 12);
  pagefork_instance_pre_delete(pre);

  /* Signals while guests run; the handler is on the stack of signals. */
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  CHECK(!sigaction(SIGALRM, &action, NULL));
  struct itimerval each = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
  CHECK(!setitimer(ITIMER_REAL, &each, NULL));
  wasm_extern_t *spin = export_of("spin");
  OK(pagefork_func_typed(wasm_extern_as_func(spin), "i:i", &typed));
  while (signals < 20)
    CHECK(PAGEFORK_CALL(typed, int32_t, (pagefork_typed_func_t *, int32_t), typed, 1000000) ==
          1000000);
  CHECK(!setitimer(ITIMER_REAL, &never, NULL));
  pagefork_typed_func_delete(typed);
  wasm_extern_delete(spin);
  delete_all();
  puts("ok");
  return 0;
}
