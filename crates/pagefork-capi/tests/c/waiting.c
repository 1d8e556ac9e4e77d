/* Functions that are begun and completed later, and calls that wait for them. */

/* For usleep. */
#define _DEFAULT_SOURCE

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

/* What the callback is to do with the next call. */
enum what { AT_ONCE, LATER, THROUGH_THREAD, FAIL, GIVE_UP, WRONG_KIND, WRONG_COUNT, THROW, RAISE };

static enum what what;
static pagefork_completion_t *pending;
static pagefork_error_t *thrown;
static int finalized, cancelled, notified, begun;

/* The store of the guest that is to wait, if it is wanted. */
static bool keeps_store;
static wasm_store_t *kept_store;

static void count(void *counter) { __atomic_fetch_add((int *)counter, 1, __ATOMIC_SEQ_CST); }

static int count_of(int *counter) { return __atomic_load_n(counter, __ATOMIC_SEQ_CST); }

static pagefork_val_t i32(int32_t value) { return (pagefork_val_t){WASM_I32, {.i32 = value}}; }

static void finish(pagefork_completion_t *completion, int32_t value) {
  pagefork_val_t result = i32(value);
  pagefork_completion_finish(completion, &result, 1);
}

struct task {
  pthread_t thread;
  pagefork_completion_t *completion;
  char *memory;
};

static struct task task;

/* Writes to the guest's memory, and completes. */
static void *complete_on_a_thread(void *argument) {
  struct task *own = (struct task *)argument;
  usleep(2000);
  int32_t number = 1000;
  memcpy(own->memory, &number, sizeof number);
  CHECK(pagefork_completion_is_wanted(own->completion));
  finish(own->completion, 30);
  return NULL;
}

static void fetch(const pagefork_caller_t *caller, const pagefork_val_t *args, size_t arg_count,
                  pagefork_completion_t *completion) {
  CHECK(caller->env == &finalized && arg_count == 1 && args[0].kind == WASM_I32);
  CHECK(pagefork_completion_is_wanted(completion));
  begun++;
  pagefork_val_t results[2] = {i32(1), i32(2)};
  wasm_extern_t *memory;
  switch (what) {
    case AT_ONCE: finish(completion, args[0].of.i32 * 10); return;
    case LATER:
      if (keeps_store) kept_store = pagefork_store_copy(caller->store);
      pagefork_completion_on_cancel(completion, count, &cancelled);
      pending = completion;
      return;
    case THROUGH_THREAD:
      OK(pagefork_caller_export(caller, "memory", &memory));
      task.memory = wasm_memory_data(wasm_extern_as_memory(memory));
      wasm_extern_delete(memory);
      task.completion = completion;
      CHECK(!pthread_create(&task.thread, NULL, complete_on_a_thread, &task));
      return;
    case FAIL: pagefork_completion_fail(completion, pagefork_error_new("no answer")); return;
    case GIVE_UP: pagefork_completion_delete(completion); return;
    case WRONG_KIND:
      results[0] = (pagefork_val_t){WASM_I64, {.i64 = 5}};
      pagefork_completion_finish(completion, results, 1);
      return;
    case WRONG_COUNT: pagefork_completion_finish(completion, results, 2); return;
    case THROW: pagefork_completion_fail(completion, wasm_trap_copy(thrown)); return;
    case RAISE:
      pagefork_completion_on_cancel(completion, count, &cancelled);
      pagefork_raise(caller, pagefork_error_new("raised"));
      pending = completion;
      return;
  }
}

/* Gives its arguments back in the other order, later. */
static pagefork_val_t swapped[2];

static void swap(const pagefork_caller_t *caller, const pagefork_val_t *args, size_t arg_count,
                 pagefork_completion_t *completion) {
  (void)caller;
  CHECK(arg_count == 2 && args[0].kind == PAGEFORK_V128 && args[1].kind == WASM_EXTERNREF);
  swapped[0] = args[1];
  swapped[0].of.ref = wasm_ref_copy(args[1].of.ref);
  swapped[1] = args[0];
  pending = completion;
}

static wasm_functype_t *type_of(size_t params, const wasm_valkind_t *in, size_t results,
                                const wasm_valkind_t *out) {
  wasm_valtype_vec_t a, b;
  wasm_valtype_vec_new_uninitialized(&a, params);
  wasm_valtype_vec_new_uninitialized(&b, results);
  for (size_t i = 0; i < params; i++) a.data[i] = wasm_valtype_new(in[i]);
  for (size_t i = 0; i < results; i++) b.data[i] = wasm_valtype_new(out[i]);
  return wasm_functype_new(&a, &b);
}

static wasm_func_t *export_func(const wasm_instance_t *instance, const char *name) {
  wasm_extern_t *export;
  OK(pagefork_instance_export(instance, name, &export));
  wasm_func_t *func = wasm_extern_as_func((wasm_extern_t *)keep(export));
  CHECK(func);
  return func;
}

static pagefork_call_t *begin(const wasm_func_t *func, int32_t value) {
  pagefork_call_t *call;
  pagefork_val_t arg = i32(value);
  OK(pagefork_func_call_async(func, &arg, 1, count, &notified, NULL, &call));
  return call;
}

/* The result of a call that has ended. */
static int32_t result_of(pagefork_call_t *call) {
  pagefork_val_t result;
  OK(pagefork_call_results(call, &result, 1));
  pagefork_call_delete(call);
  return result.of.i32;
}

/* What has ended a call. */
static void ends_with(pagefork_call_t *call, const char *text) {
  pagefork_val_t result;
  FAILS(pagefork_call_results(call, &result, 1), text);
  pagefork_call_delete(call);
}

static int32_t calls(const wasm_func_t *func) {
  pagefork_val_t result;
  OK(pagefork_func_call(func, NULL, 0, &result, 1));
  return result.of.i32;
}

static void outcomes(wasm_store_t *store, wasm_instance_t *instance) {
  wasm_func_t *run = export_func(instance, "run");
  what = AT_ONCE;
  pagefork_call_t *call = begin(run, 4);
  CHECK(pagefork_call_poll(call) && pagefork_call_poll(call));
  CHECK(result_of(call) == 40);

  /* Later, on the same thread: told once, however often there is something to tell. */
  what = LATER;
  notified = 0;
  call = begin(run, 4);
  CHECK(!notified && !pagefork_call_poll(call) && !pagefork_call_poll(call) && !notified);
  FAILS(pagefork_call_results(call, NULL, 0), "not ended");
  finish(pending, 7);
  CHECK(notified == 1);
  CHECK(pagefork_call_poll(call));
  FAILS(pagefork_call_results(call, NULL, 0), "needed");
  FAILS(pagefork_call_results(call, NULL, 1), "null");
  pagefork_val_t result;
  OK(pagefork_call_results(call, &result, 1));
  CHECK(result.of.i32 == 7);
  FAILS(pagefork_call_results(call, &result, 1), "already");
  pagefork_call_delete(call);

  /* Twice in a call. */
  call = begin(export_func(instance, "twice"), 4);
  CHECK(!pagefork_call_poll(call));
  finish(pending, 7);
  CHECK(!pagefork_call_poll(call));
  finish(pending, 8);
  CHECK(pagefork_call_poll(call) && result_of(call) == 15);
  CHECK(!cancelled);

  const struct {
    enum what what;
    const char *text;
  } failures[] = {{FAIL, "no answer"}, {GIVE_UP, "given up"},   {WRONG_KIND, "i64"},
                  {WRONG_COUNT, "2"},  {THROW, "uncaught exception"}};
  for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
    what = failures[i].what;
    call = begin(run, 4);
    CHECK(pagefork_call_wait(call, UINT64_MAX));
    ends_with(call, failures[i].text);
  }
  what = RAISE;
  call = begin(run, 4);
  CHECK(pagefork_call_poll(call) && cancelled == 1);
  ends_with(call, "raised");
  CHECK(!pagefork_completion_is_wanted(pending));
  finish(pending, 1);
  cancelled = 0;

  /* An exception that comes later is caught where the guest waits. */
  what = LATER;
  call = begin(export_func(instance, "catch"), 4);
  CHECK(!pagefork_call_poll(call));
  pagefork_completion_fail(pending, wasm_trap_copy(thrown));
  CHECK(pagefork_call_poll(call) && result_of(call) == 77);

  /* Vectors and references. */
  wasm_foreign_t *foreign = wasm_foreign_new(store);
  pagefork_val_t args[2] = {{PAGEFORK_V128, {.v128 = {1, 2}}},
                            {WASM_EXTERNREF, {.ref = wasm_foreign_as_ref(foreign)}}};
  OK(pagefork_func_call_async(export_func(instance, "swap"), args, 2, NULL, NULL, NULL, &call));
  CHECK(!pagefork_call_poll(call));
  pagefork_completion_finish(pending, swapped, 2);
  CHECK(pagefork_call_poll(call));
  pagefork_val_t got[2];
  OK(pagefork_call_results(call, got, 2));
  CHECK(wasm_ref_same(got[0].of.ref, args[1].of.ref) && got[1].of.v128[1] == 2);
  wasm_ref_delete(got[0].of.ref);
  pagefork_call_delete(call);
  wasm_foreign_delete(foreign);

  /* Called by C itself. */
  wasm_valkind_t kind = WASM_I32;
  wasm_functype_t *type = type_of(1, &kind, 1, &kind);
  wasm_func_t *own;
  int before = finalized;
  FAILS(pagefork_func_new_async(store, type, NULL, &finalized, count, &own), "null");
  CHECK(!own && finalized == before + 1);
  OK(pagefork_func_new_async(store, type, fetch, &finalized, count, &own));
  wasm_functype_delete(type);
  call = begin(own, 4);
  CHECK(!pagefork_call_poll(call));
  finish(pending, 5);
  CHECK(pagefork_call_poll(call) && result_of(call) == 5);
  wasm_func_delete(own);

  /* By a call that cannot wait: it is not even begun. */
  int had_begun = begun;
  pagefork_val_t arg = i32(1);
  FAILS(pagefork_func_call(run, &arg, 1, &result, 1), "async");
  CHECK(begun == had_begun);
}

/* An event loop of one descriptor. */
static void write_to(void *descriptor) {
  uint64_t one = 1;
  CHECK(write(*(int *)descriptor, &one, sizeof one) == sizeof one);
}

static void event_loop(wasm_instance_t *instance) {
  int descriptor = eventfd(0, EFD_CLOEXEC);
  CHECK(descriptor >= 0);
  what = THROUGH_THREAD;
  pagefork_call_t *call;
  pagefork_val_t arg = i32(4), result;
  wasm_func_t *run = export_func(instance, "run");
  OK(pagefork_func_call_async(run, &arg, 1, write_to, &descriptor, NULL, &call));
  while (!pagefork_call_poll(call)) {
    struct pollfd entry = {descriptor, POLLIN, 0};
    uint64_t times;
    CHECK(poll(&entry, 1, 20000) == 1 && read(descriptor, &times, sizeof times) == sizeof times);
    CHECK(times == 1);
  }
  OK(pagefork_call_results(call, &result, 1));
  CHECK(result.of.i32 == 1030);
  pagefork_call_delete(call);
  CHECK(!pthread_join(task.thread, NULL));
  CHECK(!close(descriptor));

  /* Without a loop. */
  OK(pagefork_func_call_async(run, &arg, 1, NULL, NULL, NULL, &call));
  CHECK(pagefork_call_wait(call, UINT64_MAX) && pagefork_call_wait(call, 0));
  CHECK(result_of(call) == 1030);
  CHECK(!pthread_join(task.thread, NULL));
  memset(task.memory, 0, 4);
}

static void *interrupt(void *handle) {
  usleep(2000);
  pagefork_interrupt_guests((pagefork_interrupt_t *)handle);
  return NULL;
}

static void what_ends_a_wait(wasm_store_t *store, wasm_instance_t *instance) {
  wasm_func_t *run = export_func(instance, "run");
  what = LATER;
  cancelled = 0;
  OK(pagefork_store_set_timeout(store, 5 * 1000 * 1000));
  pagefork_call_t *call = begin(run, 4);
  CHECK(pagefork_call_wait(call, UINT64_MAX) && cancelled == 1);
  CHECK(!pagefork_completion_is_wanted(pending));
  ends_with(call, "interrupted");
  finish(pending, 1);
  OK(pagefork_store_set_timeout(store, 0));

  pagefork_interrupt_t *handle;
  OK(pagefork_store_interrupt_handle(store, &handle));
  call = begin(run, 4);
  CHECK(!pagefork_call_poll(call));
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, interrupt, handle));
  CHECK(pagefork_call_wait(call, UINT64_MAX) && cancelled == 2);
  ends_with(call, "interrupted");
  /* What comes too late is told at once, and dropped. */
  pagefork_completion_on_cancel(pending, count, &cancelled);
  CHECK(cancelled == 3);
  pagefork_completion_fail(pending, pagefork_error_new("too late"));
  CHECK(!pthread_join(thread, NULL));
  pagefork_interrupt_delete(handle);

  /* Deleted before it has begun, while it waits, when it is to go on, and when it has ended. */
  int32_t before = calls(export_func(instance, "calls"));
  for (int step = 0; step < 4; step++) {
    cancelled = 0;
    int before_finalized = count_of(&finalized);
    pagefork_val_t arg = i32(4);
    OK(pagefork_func_call_async(run, &arg, 1, NULL, &finalized, count, &call));
    pagefork_val_t result;
    FAILS(pagefork_func_call(run, &arg, 1, &result, 1), "waits");
    FAILS(pagefork_func_call_async(run, &arg, 1, NULL, NULL, NULL, &(pagefork_call_t *){NULL}),
          "waits");
    FAILS(pagefork_store_reset(store, NULL), "waits");
    wasm_extern_t *external;
    FAILS(pagefork_instance_export(instance, "memory", &external), "waits");
    CHECK(!external);
    if (step >= 1) CHECK(!pagefork_call_poll(call));
    if (step >= 1) CHECK(!pagefork_call_wait(call, 1000000) && !pagefork_call_wait(call, 0));
    if (step >= 2) finish(pending, 3);
    if (step >= 3) CHECK(pagefork_call_poll(call));
    pagefork_call_delete(call);
    CHECK(cancelled == (step == 1));
    if (step == 1) pagefork_completion_delete(pending);
    CHECK(count_of(&finalized) == before_finalized + 1);
    if (step >= 1) before++;
    CHECK(calls(export_func(instance, "calls")) == before);
  }

  /* Guests that compute let others run. */
  OK(pagefork_store_set_yield_interval(store, 1000 * 1000));
  notified = 0;
  call = begin(export_func(instance, "spin"), 200 * 1000 * 1000);
  int polls = 1;
  while (!pagefork_call_poll(call)) polls++;
  CHECK(polls > 2 && count_of(&notified) > 1);
  CHECK(result_of(call) == 200 * 1000 * 1000);
  OK(pagefork_store_set_yield_interval(store, 0));
}

static void null_and_nothing(wasm_instance_t *instance) {
  pagefork_call_t *call;
  pagefork_val_t wrong = {WASM_F32, {.f32 = 1}};
  wasm_func_t *run = export_func(instance, "run");
  int before = finalized;
  FAILS(pagefork_func_call_async(NULL, NULL, 0, NULL, &finalized, count, &call), "null");
  FAILS(pagefork_func_call_async(run, NULL, 1, NULL, &finalized, count, &call), "null");
  FAILS(pagefork_func_call_async(run, NULL, 0, NULL, &finalized, count, &call), "needed");
  FAILS(pagefork_func_call_async(run, &wrong, 1, NULL, &finalized, count, &call), "f32");
  FAILS(pagefork_func_call_async(run, &wrong, 1, NULL, &finalized, count, NULL), "null");
  CHECK(!call && finalized == before + 5);
  CHECK(!pagefork_call_poll(NULL) && !pagefork_call_wait(NULL, UINT64_MAX));
  FAILS(pagefork_call_results(NULL, NULL, 0), "null");
  pagefork_call_delete(NULL);
  pagefork_completion_finish(NULL, NULL, 0);
  pagefork_completion_fail(NULL, pagefork_error_new("for nobody"));
  pagefork_completion_delete(NULL);
  pagefork_completion_on_cancel(NULL, NULL, NULL);
  CHECK(!pagefork_completion_is_wanted(NULL) && !pagefork_error_new(NULL));
  wasm_trap_delete(pagefork_last_error());
  what = LATER;
  call = begin(run, 1);
  CHECK(!pagefork_call_poll(call));
  pagefork_completion_fail(pending, NULL);
  CHECK(pagefork_call_poll(call));
  ends_with(call, "null");
  call = begin(run, 1);
  CHECK(!pagefork_call_poll(call));
  pagefork_completion_finish(pending, NULL, 1);
  CHECK(pagefork_call_poll(call));
  ends_with(call, "null");
}

/* A callback that uses the call that it is in. */
static pagefork_call_t *own_call;

static void use_own_call(const pagefork_caller_t *caller, const pagefork_val_t *args,
                         size_t arg_count, pagefork_completion_t *completion) {
  (void)caller, (void)args, (void)arg_count;
  CHECK(!pagefork_call_poll(own_call) && !pagefork_call_wait(own_call, UINT64_MAX));
  FAILS(pagefork_last_error(), "being polled");
  FAILS(pagefork_call_results(own_call, NULL, 0), "not ended");
  pagefork_call_delete(own_call);
  pagefork_completion_on_cancel(completion, count, &cancelled);
  pending = completion;
}

static void deleted_by_its_callback(wasm_engine_t *engine) {
  for (int step = 0; step < 2; step++) {
    wasm_store_t *store = wasm_store_new(engine);
    wasm_functype_t *type = wasm_functype_new_0_0();
    wasm_func_t *func;
    int before = finalized;
    cancelled = 0;
    OK(pagefork_func_new_async(store, type, use_own_call, &finalized, count, &func));
    wasm_functype_delete(type);
    OK(pagefork_func_call_async(func, NULL, 0, NULL, NULL, NULL, &own_call));
    /* The call is the last that knows the store. */
    wasm_func_delete(func);
    wasm_store_delete(store);
    if (step == 0) {
      pagefork_call_poll(own_call);
      CHECK(cancelled == 1);
      pagefork_completion_delete(pending);
    } else {
      pagefork_call_delete(own_call);
      CHECK(cancelled == 0);
    }
    CHECK(finalized == before + 1);
  }
}

/* Modules whose start functions wait. */
static void starting(wasm_engine_t *engine, const pagefork_linker_t *linker) {
  static const char text[] =
      "(module (import \"host\" \"fetch\" (func $fetch (param i32) (result i32)))"
      " (global $got (mut i32) (i32.const 0))"
      " (func $start (global.set $got (call $fetch (i32.const 4)))) (start $start)"
      " (func (export \"got\") (result i32) (global.get $got)))";
  wasm_module_t *module;
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  wasm_store_t *store = wasm_store_new(engine);
  wasm_instance_t *instance;
  pagefork_val_t result;
  pagefork_call_t *call, *other;
  int before = finalized;
  notified = 0;
  what = LATER;
  FAILS(pagefork_linker_instantiate(linker, store, module, &instance), "async");
  OK(pagefork_linker_instantiate_async(linker, store, module, count, &notified, NULL, &call));
  CHECK(!pagefork_call_poll(call) && !notified);
  FAILS(pagefork_call_instance(call, &instance), "poll it");
  FAILS(pagefork_linker_instantiate_async(linker, store, module, NULL, &finalized, count, &other),
        "cannot be used now");
  CHECK(!other && finalized == before + 1);
  finish(pending, 40);
  CHECK(notified == 1 && pagefork_call_poll(call));
  FAILS(pagefork_call_results(call, &result, 1), "an instance");
  FAILS(pagefork_call_instance(call, NULL), "null");
  OK(pagefork_call_instance(call, &instance));
  wasm_instance_delete(instance);
  FAILS(pagefork_call_instance(call, &instance), "taken already");
  CHECK(!instance);
  pagefork_call_delete(call);
  OK(pagefork_linker_instantiate_async(linker, store, module, NULL, NULL, NULL, &call));
  what = AT_ONCE;
  CHECK(pagefork_call_wait(call, UINT64_MAX));
  OK(pagefork_call_instance(call, &instance));
  OK(pagefork_func_call(export_func(instance, "got"), NULL, 0, &result, 1));
  CHECK(result.of.i32 == 40);
  delete_kept();
  wasm_instance_delete(instance);
  pagefork_call_delete(call);

  /* What fails, and what is given up. */
  what = FAIL;
  OK(pagefork_linker_instantiate_async(linker, store, module, NULL, NULL, NULL, &call));
  CHECK(pagefork_call_poll(call));
  FAILS(pagefork_call_instance(call, &instance), "no answer");
  pagefork_call_delete(call);
  what = LATER;
  int cancelled_before = cancelled;
  OK(pagefork_linker_instantiate_async(linker, store, module, NULL, NULL, NULL, &call));
  CHECK(!pagefork_call_poll(call));
  pagefork_call_delete(call);
  CHECK(cancelled == cancelled_before + 1);
  pagefork_completion_delete(pending);
  /* One that was never polled has made nothing. */
  OK(pagefork_linker_instantiate_async(linker, store, module, NULL, NULL, NULL, &call));
  pagefork_call_delete(call);
  what = AT_ONCE;
  OK(pagefork_linker_instantiate_async(linker, store, module, NULL, NULL, NULL, &call));
  CHECK(pagefork_call_poll(call));
  pagefork_call_delete(call);

  pagefork_linker_t *empty;
  OK(pagefork_linker_new(engine, &empty));
  FAILS(pagefork_linker_instantiate_async(empty, store, module, NULL, NULL, NULL, &call), "fetch");
  pagefork_linker_delete(empty);
  wasm_engine_t *stranger = wasm_engine_new();
  wasm_store_t *foreign = wasm_store_new(stranger);
  FAILS(pagefork_linker_instantiate_async(linker, foreign, module, NULL, NULL, NULL, &call),
        "engine");
  wasm_store_delete(foreign);
  wasm_engine_delete(stranger);
  FAILS(pagefork_linker_instantiate_async(NULL, store, module, NULL, NULL, NULL, &call), "null");
  FAILS(pagefork_linker_instantiate_async(linker, NULL, module, NULL, NULL, NULL, &call), "null");
  FAILS(pagefork_linker_instantiate_async(linker, store, NULL, NULL, NULL, NULL, &call), "null");
  FAILS(pagefork_linker_instantiate_async(linker, store, module, NULL, NULL, NULL, NULL), "null");
  wasm_instance_t *unset = (wasm_instance_t *)&module;
  instance = unset;
  FAILS(pagefork_call_instance(NULL, &instance), "null");
  CHECK(!instance);
  instance = unset;
  FAILS(pagefork_linker_instantiate(linker, NULL, module, &instance), "null");
  CHECK(!instance);
  wasm_module_delete(module);
  wasm_store_delete(store);
}

/* The number that the start function of a spawned instance got; deletes all but the call's. */
static int32_t spawned_number(pagefork_call_t *call) {
  wasm_store_t *store;
  wasm_instance_t *instance;
  pagefork_val_t result;
  OK(pagefork_call_spawned(call, &store, &instance));
  OK(pagefork_func_call(export_func(instance, "got"), NULL, 0, &result, 1));
  delete_kept();
  wasm_store_delete(store);
  wasm_instance_delete(instance);
  return result.of.i32;
}

/* Fresh instances whose start functions wait. */
static void spawning(wasm_engine_t *engine, const pagefork_linker_t *linker) {
  static const char text[] =
      "(module (import \"host\" \"fetch\" (func $fetch (param i32) (result i32))) (memory 1)"
      " (global $got (mut i32) (i32.const 0))"
      " (func $start (global.set $got (call $fetch (i32.const 4)))) (start $start)"
      " (func (export \"got\") (result i32) (global.get $got)))";
  wasm_module_t *module;
  pagefork_instance_pre_t *pre;
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  OK(pagefork_linker_instantiate_pre(linker, module, &pre));
  wasm_module_delete(module);
  wasm_store_t *store;
  wasm_instance_t *instance;
  pagefork_val_t result;
  pagefork_call_t *call, *other;
  what = LATER;
  notified = 0;
  FAILS(pagefork_instance_pre_spawn(pre, NULL, &store, &instance), "async");
  pagefork_limits_t limits = {.memory_total = 2 << 16};
  pagefork_wasi_config_t *config = pagefork_wasi_config_new();
  pagefork_spawn_t how = {.tenant = 3, .limits = &limits, .wasi = config};
  OK(pagefork_instance_pre_spawn_async(pre, &how, count, &notified, NULL, &call));
  OK(pagefork_instance_pre_spawn_async(pre, NULL, NULL, NULL, NULL, &other));
  pagefork_wasi_config_delete(config);
  how = (pagefork_spawn_t){.tenant = 4};
  limits.memory_total = 1;
  keeps_store = true;
  CHECK(!pagefork_call_poll(call) && !notified);
  keeps_store = false;
  pagefork_completion_t *first = pending;
  CHECK(!pagefork_call_poll(other));
  FAILS(pagefork_call_spawned(call, &store, &instance), "poll it");
  CHECK(!store && !instance);
  /* Who has seen the store can keep it, and must wait, too. */
  FAILS(pagefork_store_set_limits(kept_store, NULL), "cannot be used now");
  finish(pending, 50);
  finish(first, 40);
  CHECK(notified == 1 && pagefork_call_poll(call) && pagefork_call_poll(other));
  FAILS(pagefork_call_results(call, &result, 1), "an instance");
  FAILS(pagefork_call_spawned(call, NULL, &instance), "null");
  FAILS(pagefork_call_spawned(call, &store, NULL), "null");
  CHECK(spawned_number(call) == 40 && spawned_number(other) == 50);
  FAILS(pagefork_call_spawned(call, &store, &instance), "taken already");
  CHECK(!store && !instance);
  pagefork_call_delete(call);
  pagefork_call_delete(other);
  OK(pagefork_store_set_limits(kept_store, NULL));
  wasm_store_delete(kept_store);
  what = AT_ONCE;

  /* The instance alone keeps its store. */
  for (int i = 0; i < 3; i++) {
    OK(pagefork_instance_pre_spawn_async(pre, &how, NULL, NULL, NULL, &call));
    CHECK(pagefork_call_wait(call, UINT64_MAX));
    OK(pagefork_call_instance(call, &instance));
    pagefork_call_delete(call);
    OK(pagefork_func_call(export_func(instance, "got"), NULL, 0, &result, 1));
    CHECK(result.of.i32 == 40);
    delete_kept();
    wasm_instance_delete(instance);
  }

  /* What fails, and what is given up: there is no store then. */
  how.limits = &limits;
  OK(pagefork_instance_pre_spawn_async(pre, &how, NULL, NULL, NULL, &call));
  CHECK(pagefork_call_poll(call));
  FAILS(pagefork_call_spawned(call, &store, &instance), "limit");
  pagefork_call_delete(call);
  what = FAIL;
  OK(pagefork_instance_pre_spawn_async(pre, NULL, NULL, NULL, NULL, &call));
  CHECK(pagefork_call_poll(call));
  FAILS(pagefork_call_spawned(call, &store, &instance), "no answer");
  CHECK(!store && !instance);
  pagefork_call_delete(call);
  what = LATER;
  for (int polls = 0; polls < 2; polls++) {
    int before = cancelled, before_finalized = finalized;
    keeps_store = true;
    OK(pagefork_instance_pre_spawn_async(pre, NULL, NULL, &finalized, count, &call));
    if (polls) CHECK(!pagefork_call_poll(call));
    keeps_store = false;
    pagefork_call_delete(call);
    CHECK(cancelled == before + polls && finalized == before_finalized + 1);
    if (!polls) continue;
    pagefork_completion_delete(pending);
    FAILS(pagefork_store_set_limits(kept_store, NULL), "cannot be used now");
    wasm_store_delete(kept_store);
  }

  int before = finalized;
  how.reserved[0] = 1;
  FAILS(pagefork_instance_pre_spawn_async(pre, &how, NULL, &finalized, count, &call), "reserved");
  CHECK(!call);
  FAILS(pagefork_instance_pre_spawn_async(NULL, NULL, NULL, &finalized, count, &call), "null");
  FAILS(pagefork_instance_pre_spawn_async(pre, NULL, NULL, &finalized, count, NULL), "null");
  CHECK(!call && finalized == before + 3);
  store = (wasm_store_t *)&module;
  FAILS(pagefork_call_spawned(NULL, &store, &instance), "null");
  CHECK(!store && !instance);

  /* The call has what it needs. */
  OK(pagefork_instance_pre_spawn_async(pre, NULL, NULL, NULL, NULL, &call));
  pagefork_instance_pre_delete(pre);
  CHECK(!pagefork_call_poll(call));
  finish(pending, 60);
  CHECK(pagefork_call_poll(call) && spawned_number(call) == 60);
  pagefork_call_delete(call);
}

int main(void) {
  wasm_engine_t *engine = wasm_engine_new();
  wasm_store_t *store = wasm_store_new(engine);
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  const wasm_valkind_t number = WASM_I32, in[] = {PAGEFORK_V128, WASM_EXTERNREF},
                       out[] = {WASM_EXTERNREF, PAGEFORK_V128};
  wasm_functype_t *type = type_of(1, &number, 1, &number);
  FAILS(pagefork_linker_func_async(linker, "host", "fetch", type, NULL, &finalized, count), "null");
  CHECK(finalized == 1);
  OK(pagefork_linker_func_async(linker, "host", "fetch", type, fetch, &finalized, count));
  FAILS(pagefork_linker_func_async(linker, "host", "fetch", type, fetch, &finalized, count),
        "already defined");
  CHECK(finalized == 2);
  wasm_functype_delete(type);
  type = type_of(2, in, 2, out);
  OK(pagefork_linker_func_async(linker, "host", "swap", type, swap, NULL, NULL));
  wasm_functype_delete(type);
  type = type_of(1, &number, 0, NULL);
  wasm_extern_t *tag;
  OK(pagefork_tag_new(store, type, &tag));
  wasm_functype_delete(type);
  OK(pagefork_linker_define(linker, "host", "tag", tag));
  pagefork_val_t payload = i32(77);
  OK(pagefork_exception_new(tag, &payload, 1, &thrown));
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, COMPILE(store, waiting), &instance));
  outcomes(store, instance);
  event_loop(instance);
  what_ends_a_wait(store, instance);
  null_and_nothing(instance);
  deleted_by_its_callback(engine);
  starting(engine, linker);
  delete_kept();
  spawning(engine, linker);
  wasm_trap_delete(thrown);
  wasm_extern_delete(tag);
  delete_kept();
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  int before = finalized;
  pagefork_linker_delete(linker);
  CHECK(finalized == before + 1);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
