/* Guests that are suspended, captured, forked and spawned again; exceptions as values. */

/* For usleep. */
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

enum what { ANSWER, BEFORE, AFTER, CANNOT };

static enum what what;
static int32_t answer;

static pagefork_val_t i32(int32_t value) { return (pagefork_val_t){WASM_I32, {.i32 = value}}; }

static pagefork_error_t *ask(const pagefork_caller_t *caller, const pagefork_val_t *args,
                             size_t arg_count, pagefork_val_t *results, size_t result_count) {
  CHECK(arg_count == 1 && result_count == 1);
  switch (what) {
    case BEFORE: return pagefork_caller_suspend_before(caller);
    case AFTER: OK(pagefork_caller_suspend_after(caller)); break;
    case CANNOT:
      CHECK(!pagefork_caller_can_suspend(caller));
      FAILS(pagefork_caller_suspend_after(caller), "call_suspendable");
      FAILS(pagefork_caller_suspend_before(caller), "call_suspendable");
      break;
    case ANSWER: break;
  }
  results[0] = i32(args[0].of.i32 + answer);
  return NULL;
}

/* The same with its own arguments. */
static int32_t ask_wrapped(const pagefork_caller_t *caller, int32_t value) {
  if (what == BEFORE) {
    pagefork_raise(caller, pagefork_caller_suspend_before(caller));
    return 0;
  }
  if (what == AFTER) OK(pagefork_caller_suspend_after(caller));
  return value + answer;
}

static double mix(const pagefork_caller_t *caller, int32_t a, float b, int64_t c, double d) {
  if (what == BEFORE) pagefork_raise(caller, pagefork_caller_suspend_before(caller));
  return a + (double)b + (double)c + d;
}

static wasm_extern_t *export_of(const wasm_instance_t *instance, const char *name) {
  wasm_extern_t *export;
  OK(pagefork_instance_export(instance, name, &export));
  return (wasm_extern_t *)keep(export);
}

static wasm_func_t *export_func(const wasm_instance_t *instance, const char *name) {
  wasm_func_t *func = wasm_extern_as_func(export_of(instance, name));
  CHECK(func);
  return func;
}

static int32_t count(wasm_instance_t *instance) {
  pagefork_val_t result;
  OK(pagefork_func_call(export_func(instance, "count"), NULL, 0, &result, 1));
  return result.of.i32;
}

/* Calls `run`, which is suspended as `how` says. */
static void suspend(wasm_instance_t *instance, enum what how) {
  pagefork_val_t arg = i32(7), results[2];
  bool suspended = false;
  what = how;
  OK(pagefork_func_call_suspendable(export_func(instance, "run"), &arg, 1, results, 2, &suspended));
  CHECK(suspended);
}

/* Resumes what `suspend` has left; `run` gives this. */
static void resumes_to(wasm_store_t *store, int32_t expected) {
  pagefork_val_t results[2];
  bool suspended = true;
  OK(pagefork_store_resume(store, results, 2, &suspended));
  CHECK(!suspended && results[0].of.i32 == expected && results[1].of.i64 == -3);
}

static bool is_suspended;

/* Asks until the guest is suspended: what comes before its call is forgotten. */
static void *suspend_later(void *handle) {
  while (!__atomic_load_n(&is_suspended, __ATOMIC_SEQ_CST)) {
    usleep(1000);
    pagefork_interrupt_suspend((pagefork_interrupt_t *)handle);
  }
  return NULL;
}

static void suspension(wasm_store_t *store, wasm_instance_t *instance) {
  pagefork_val_t arg = i32(7), results[2], given = i32(50);
  bool suspended = true;
  wasm_func_t *run = export_func(instance, "run"), *asked;
  what = ANSWER;
  answer = 30;
  OK(pagefork_func_call_suspendable(run, &arg, 1, results, 2, &suspended));
  CHECK(!suspended && results[0].of.i32 == 38 && results[1].of.i64 == -3);
  CHECK(pagefork_store_suspended_at(store) == PAGEFORK_SUSPENDED_NOWHERE);
  FAILS(pagefork_store_resume(store, results, 2, &suspended), "no suspended guest");
  FAILS(pagefork_store_suspended_call(store, &asked, &arg, 1), "null");
  CHECK(!asked);

  /* Before the call, which is made when the guest is resumed, or never. */
  suspend(instance, BEFORE);
  CHECK(pagefork_store_suspended_at(store) == PAGEFORK_SUSPENDED_BEFORE_HOST_CALL);
  FAILS(pagefork_func_call(run, &arg, 1, results, 2), "suspended");
  FAILS(pagefork_store_suspended_call(store, &asked, &arg, 0), "needed");
  OK(pagefork_store_suspended_call(store, &asked, &arg, 1));
  CHECK(asked && arg.of.i32 == 7);
  wasm_func_delete(asked);
  OK(pagefork_store_resume(store, results, 2, &suspended));
  CHECK(suspended);
  what = ANSWER;
  resumes_to(store, 38);
  suspend(instance, BEFORE);
  FAILS(pagefork_store_resume_with(store, &given, 0, NULL, results, 2, &suspended), "needed");
  FAILS(pagefork_store_resume_with(store, NULL, 1, NULL, results, 2, &suspended), "null");
  pagefork_val_t wrong = {WASM_F32, {.f32 = 1}};
  FAILS(pagefork_store_resume_with(store, &wrong, 1, NULL, results, 2, &suspended), "f32");
  OK(pagefork_store_resume_with(store, &given, 1, NULL, results, 2, &suspended));
  CHECK(!suspended && results[0].of.i32 == 51);
  suspend(instance, BEFORE);
  FAILS(pagefork_store_resume_with(store, NULL, 0, pagefork_error_new("no answer"), results, 2,
                                   &suspended),
        "no answer");
  CHECK(pagefork_store_suspended_at(store) == PAGEFORK_SUSPENDED_NOWHERE);

  suspend(instance, AFTER);
  CHECK(pagefork_store_suspended_at(store) == PAGEFORK_SUSPENDED_AFTER_HOST_CALL);
  FAILS(pagefork_store_resume_with(store, &given, 1, NULL, results, 2, &suspended), "no results");
  resumes_to(store, 38);
  suspend(instance, AFTER);
  FAILS(pagefork_store_resume(store, results, 1, &suspended), "needed");
  suspend(instance, AFTER);
  OK(pagefork_store_abandon(store));
  OK(pagefork_store_abandon(store));
  FAILS(pagefork_store_resume(store, results, 2, &suspended), "no suspended guest");

  /* By another thread. */
  pagefork_interrupt_t *handle;
  OK(pagefork_store_interrupt_handle(store, &handle));
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, suspend_later, handle));
  wasm_func_t *spin = export_func(instance, "spin");
  OK(pagefork_func_call_suspendable(spin, NULL, 0, NULL, 0, &suspended));
  __atomic_store_n(&is_suspended, true, __ATOMIC_SEQ_CST);
  CHECK(suspended && !pthread_join(thread, NULL));
  CHECK(pagefork_store_suspended_at(store) == PAGEFORK_SUSPENDED_AT_INTERRUPTION);
  wasm_extern_t *memory;
  OK(pagefork_instance_export(instance, "memory", &memory));
  wasm_memory_data(wasm_extern_as_memory(memory))[4] = 1;
  OK(pagefork_store_resume(store, NULL, 0, &suspended));
  CHECK(!suspended);
  wasm_memory_data(wasm_extern_as_memory(memory))[4] = 0;
  wasm_extern_delete(memory);
  pagefork_interrupt_delete(handle);

  /* Where nothing can be suspended. */
  what = CANNOT;
  OK(pagefork_func_call(run, &arg, 1, results, 2));
  what = BEFORE;
  FAILS(pagefork_func_call(run, &arg, 1, results, 2), "call_suspendable");
  FAILS(pagefork_func_call_suspendable(run, &arg, 1, results, 1, &suspended), "needed");
  FAILS(pagefork_func_call_suspendable(run, &arg, 0, results, 2, &suspended), "needed");
  FAILS(pagefork_func_call_suspendable(run, &arg, 1, results, 2, NULL), "null");
  FAILS(pagefork_func_call_suspendable(NULL, &arg, 1, results, 2, &suspended), "null");
  /* What is said is said whatever happens. */
  suspended = true;
  FAILS(pagefork_store_resume(NULL, results, 2, &suspended), "null");
  CHECK(!suspended);
  FAILS(pagefork_store_resume_with(NULL, NULL, 0, NULL, results, 2, &suspended), "null");
  FAILS(pagefork_store_abandon(NULL), "null");
  FAILS(pagefork_caller_suspend_after(NULL), "null");
  CHECK(!pagefork_caller_suspend_before(NULL) && !pagefork_caller_can_suspend(NULL));
  CHECK(!pagefork_store_suspended_at(NULL));
  pagefork_interrupt_suspend(NULL);
  wasm_trap_delete(pagefork_last_error());
}

/* Functions with their own arguments, of a linker and of a store, do what those with values do. */
static void wrapped(wasm_engine_t *engine, wasm_module_t *module) {
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  OK(pagefork_linker_func_wrap(linker, "host", "ask", PAGEFORK_WRAP(ask_wrapped, int32_t, int32_t),
                               NULL, NULL));
  wasm_store_t *store = wasm_store_new(engine);
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  for (int i = 0; i < 2; i++) {
    suspend(instance, BEFORE);
    CHECK(pagefork_store_suspended_at(store) == PAGEFORK_SUSPENDED_BEFORE_HOST_CALL);
    pagefork_val_t results[2];
    bool suspended;
    OK(pagefork_store_resume(store, results, 2, &suspended));
    CHECK(suspended);
    wasm_store_t *fork;
    OK(pagefork_store_fork(store, NULL, &fork, 1));
    what = ANSWER;
    answer = i;
    resumes_to(fork, 8 + i);
    wasm_store_delete(fork);
    resumes_to(store, 8 + i);
    suspend(instance, AFTER);
    resumes_to(store, 8 + i);
    pagefork_val_t arg = i32(7);
    what = BEFORE;
    FAILS(pagefork_func_call(export_func(instance, "run"), &arg, 1, results, 2), "call_suspendable");
    delete_kept();
  }
  wasm_instance_delete(instance);

  /* Arguments are kept as they were. */
  OK(pagefork_linker_func_wrap(linker, "host", "mix",
                               PAGEFORK_WRAP(mix, double, int32_t, float, int64_t, double), NULL,
                               NULL));
  static const char text[] =
      "(module (import \"host\" \"mix\" (func $mix (param i32 f32 i64 f64) (result f64)))"
      " (func (export \"run\") (result f64) (call $mix (i32.const -5) (f32.const 0.5)"
      "  (i64.const 0x100000000) (f64.const -0.25))))";
  wasm_module_t *mixing;
  OK(pagefork_module_new(engine, text, sizeof text - 1, &mixing));
  OK(pagefork_linker_instantiate(linker, store, mixing, &instance));
  pagefork_val_t args[4], result;
  bool suspended;
  wasm_func_t *asked;
  what = BEFORE;
  OK(pagefork_func_call_suspendable(export_func(instance, "run"), NULL, 0, &result, 1, &suspended));
  CHECK(suspended);
  OK(pagefork_store_suspended_call(store, &asked, args, 4));
  wasm_func_delete(asked);
  CHECK(args[0].of.i32 == -5 && args[1].of.f32 == 0.5f && args[2].of.i64 == INT64_C(1) << 32);
  CHECK(args[3].of.f64 == -0.25);
  what = ANSWER;
  OK(pagefork_store_resume(store, &result, 1, &suspended));
  CHECK(!suspended && result.of.f64 == -5 + 0.5 + 4294967296.0 - 0.25);
  delete_kept();
  wasm_instance_delete(instance);
  wasm_module_delete(mixing);
  wasm_store_delete(store);
  pagefork_linker_delete(linker);
}

static int finalized;

static void finalize(void *counter) { ++*(int *)counter; }

static void snapshots(wasm_engine_t *engine, pagefork_linker_t *linker, wasm_module_t *module) {
  wasm_store_t *store = wasm_store_new(engine), *spawned, *forks[3];
  wasm_instance_t *instance, *other;
  pagefork_snapshot_t *snapshot, *running;
  pagefork_instance_pre_t *pre;
  FAILS(pagefork_store_snapshot(NULL, &snapshot), "null");
  OK(pagefork_store_snapshot(store, &snapshot));
  FAILS(pagefork_snapshot_instance_pre(snapshot, &pre), "no instance");
  pagefork_snapshot_delete(snapshot);
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  CHECK(count(instance) == 1);
  OK(pagefork_store_snapshot(store, &snapshot));
  CHECK(count(instance) == 2);

  /* Spawned from it, and reset to it. */
  OK(pagefork_snapshot_instance_pre(snapshot, &pre));
  for (int i = 0; i < 3; i++) {
    OK(pagefork_instance_pre_spawn(pre, NULL, &spawned, &other));
    CHECK(count(other) == 2 && count(other) == 3);
    OK(pagefork_store_reset(spawned, NULL));
    CHECK(count(other) == 2);
    delete_kept();
    wasm_instance_delete(other);
    wasm_store_delete(spawned);
  }
  pagefork_instance_pre_delete(pre);
  wasm_instance_set_host_info_with_finalizer(instance, &finalized, finalize);
  OK(pagefork_store_reset_to(store, snapshot, NULL));
  CHECK(finalized == 1 && count(instance) == 2);
  pagefork_store_set_data(NULL, &finalized, finalize);
  CHECK(finalized == 2);
  wasm_trap_delete(pagefork_last_error());
  FAILS(pagefork_store_reset_to(store, NULL, NULL), "null");
  wasm_store_t *stranger = wasm_store_new(engine);
  FAILS(pagefork_store_reset_to(stranger, snapshot, NULL), "other instances");
  wasm_store_delete(stranger);

  /* With a guest that runs. */
  suspend(instance, BEFORE);
  OK(pagefork_store_snapshot(store, &running));
  what = ANSWER;
  OK(pagefork_snapshot_instance_pre(running, &pre));
  wasm_extern_t *of, *memory;
  OK(pagefork_instance_export(instance, "memory", &of));
  for (int32_t i = 0; i < 3; i++) {
    OK(pagefork_instance_pre_spawn(pre, NULL, &spawned, &other));
    answer = i;
    resumes_to(spawned, 8 + i);
    OK(pagefork_store_counterpart(spawned, of, &memory));
    CHECK(wasm_memory_size(wasm_extern_as_memory(memory)) == 1);
    wasm_extern_delete(memory);
    wasm_instance_t *again;
    OK(pagefork_store_counterpart_instance(spawned, instance, &again));
    CHECK(wasm_instance_same(again, other));
    wasm_instance_delete(again);
    FAILS(pagefork_store_counterpart(spawned, NULL, &memory), "null");
    FAILS(pagefork_store_counterpart_instance(store, other, &again), "store");
    wasm_instance_delete(other);
    wasm_store_delete(spawned);
  }
  pagefork_spawn_t how = {.tenant = 5};
  OK(pagefork_store_fork(store, &how, forks, 3));
  answer = 100;
  resumes_to(store, 108);
  for (int32_t i = 2; i >= 0; i--) {
    answer = i;
    resumes_to(forks[i], 8 + i);
    wasm_store_delete(forks[i]);
  }
  how.reserved[1] = 1;
  FAILS(pagefork_store_fork(store, &how, forks, 3), "reserved");
  CHECK(!forks[0] && !forks[2]);
  FAILS(pagefork_store_fork(store, NULL, NULL, 3), "null");
  FAILS(pagefork_store_fork(NULL, NULL, forks, 3), "null");
  OK(pagefork_store_reset_to(store, running, NULL));
  answer = 9;
  resumes_to(store, 17);
  wasm_extern_delete(of);
  pagefork_instance_pre_delete(pre);
  pagefork_snapshot_delete(running);
  pagefork_snapshot_delete(snapshot);
  FAILS(pagefork_snapshot_instance_pre(NULL, &pre), "null");
  pagefork_snapshot_delete(NULL);
  delete_kept();
  wasm_instance_delete(instance);
  wasm_store_delete(store);
}

/* Exceptions as values, from a guest through C back to it. */
static void exceptions(wasm_store_t *store, wasm_instance_t *instance) {
  wasm_func_t *take = export_func(instance, "take");
  pagefork_val_t arg = i32(6), given[2], result, payload;
  OK(pagefork_func_call(export_func(instance, "give"), &arg, 1, given, 2));
  CHECK(given[0].of.i32 == 6 && given[1].kind == PAGEFORK_EXNREF && given[1].of.ref);
  wasm_trap_t *exception = wasm_ref_as_trap(given[1].of.ref);
  wasm_extern_t *tag = pagefork_exception_tag(exception), *own;
  OK(pagefork_instance_export(instance, "tag", &own));
  CHECK(wasm_extern_same(tag, own));
  OK(pagefork_exception_values(exception, &payload, 1));
  CHECK(payload.of.i32 == 6);
  OK(pagefork_func_call(take, &given[1], 1, &result, 1));
  CHECK(result.of.i32 == 6);
  pagefork_val_t null = {PAGEFORK_EXNREF, {.ref = NULL}};
  OK(pagefork_func_call(take, &null, 1, &result, 1));
  CHECK(result.of.i32 == 0);

  /* What is no exception of a guest. */
  pagefork_error_t *made;
  OK(pagefork_exception_new(tag, &arg, 1, &made));
  pagefork_val_t wrong = {PAGEFORK_EXNREF, {.ref = wasm_trap_as_ref(made)}};
  FAILS(pagefork_func_call(take, &wrong, 1, &result, 1), "throw it");
  wasm_trap_delete(made);
  wrong.of.ref = wasm_extern_as_ref(tag);
  FAILS(pagefork_func_call(take, &wrong, 1, &result, 1), "trap is needed");
  FAILS(pagefork_func_call(take, &arg, 1, &result, 1), "exnref");
  OK(pagefork_store_reset(store, NULL));
  FAILS(pagefork_func_call(take, &given[1], 1, &result, 1), "before its store was reset");
  wasm_ref_delete(given[1].of.ref);
  wasm_extern_delete(tag);
  wasm_extern_delete(own);
}

/* A program that was started once, and reads what each store gives it. */
static void programs(wasm_engine_t *engine) {
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  OK(pagefork_linker_wasi(linker));
  wasm_module_t *module;
  OK(pagefork_module_new(engine, guest_reads, sizeof guest_reads, &module));
  pagefork_wasi_config_t *config = pagefork_wasi_config_new();
  pagefork_wasi_config_await_stdin(NULL);
  wasm_trap_delete(pagefork_last_error());
  pagefork_wasi_config_await_stdin(config);
  OK(pagefork_wasi_config_directory(config, ".", "/", true));
  wasm_store_t *store = wasm_store_new(engine);
  OK(pagefork_store_set_wasi(store, config));
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  bool suspended;
  OK(pagefork_func_call_suspendable(export_func(instance, "_start"), NULL, 0, NULL, 0, &suspended));
  CHECK(suspended);
  pagefork_snapshot_t *snapshot;
  pagefork_instance_pre_t *pre;
  OK(pagefork_store_snapshot(store, &snapshot));
  OK(pagefork_snapshot_instance_pre(snapshot, &pre));
  delete_kept();
  wasm_instance_delete(instance);
  for (int i = 0; i < 3; i++) {
    pagefork_wasi_config_t *own = pagefork_wasi_config_new();
    char line[] = "line 0";
    line[5] = (char)('0' + i);
    OK(pagefork_wasi_config_stdin(own, line, 6));
    OK(pagefork_wasi_config_directory(own, ".", "/", true));
    pagefork_wasi_config_capture_stdout(own, 100);
    pagefork_spawn_t how = {.wasi = own};
    wasm_store_t *spawned;
    if (i < 2) {
      OK(pagefork_instance_pre_spawn(pre, &how, &spawned, &instance));
      wasm_instance_delete(instance);
    } else {
      spawned = pagefork_store_copy(store);
      OK(pagefork_store_reset_to(spawned, snapshot, own));
    }
    OK(pagefork_store_resume(spawned, NULL, 0, &suspended));
    CHECK(!suspended);
    wasm_byte_vec_t output;
    OK(pagefork_store_take_output(spawned, 1, &output));
    CHECK(output.size == 14 && !memcmp(output.data, "started:", 8));
    CHECK(!memcmp(output.data + 8, line, 6));
    wasm_byte_vec_delete(&output);
    pagefork_wasi_config_delete(own);
    wasm_store_delete(spawned);
  }
  wasm_store_t *spawned;
  FAILS(pagefork_instance_pre_spawn(pre, NULL, &spawned, &instance), "`/`");
  pagefork_snapshot_delete(snapshot);
  pagefork_instance_pre_delete(pre);
  pagefork_wasi_config_delete(config);
  wasm_store_delete(store);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
}

/* What is done is what was asked for, unless this machine cannot do it: the words say so then. */
static void choices(wasm_instance_t *instance, uint8_t reset, uint8_t growth) {
  static const char *const resets[] = {"auto",     "remap", "discard", "scan",
                                       "resident", "copy",  "protect", "fault"};
  static const char *const growths[] = {"mprotect", "checked", "kept", "auto", "ftruncate", "fault"};
  uint8_t used = 99;
  wasm_message_t why;
  OK(pagefork_instance_strategy(instance, &used, &why));
  CHECK(used <= PAGEFORK_RESET_FAULT && strstr(why.data, resets[used]) == why.data);
  CHECK(reset == PAGEFORK_RESET_AUTO || used == reset || strstr(why.data, "(asked for: "));
  CHECK(used != PAGEFORK_RESET_AUTO && !why.data[why.size - 1]);
  wasm_byte_vec_delete(&why);
  used = 99;
  OK(pagefork_instance_growth(instance, &used, &why));
  CHECK(used <= PAGEFORK_GROWTH_FAULT && strstr(why.data, growths[used]) == why.data);
  CHECK(growth == PAGEFORK_GROWTH_AUTO || used == growth || strstr(why.data, "(asked for: "));
  wasm_byte_vec_delete(&why);
  OK(pagefork_instance_strategy(instance, NULL, NULL));
  OK(pagefork_instance_growth(instance, &used, NULL));
  FAILS(pagefork_instance_strategy(NULL, &used, &why), "null");
  CHECK(!why.size);
  FAILS(pagefork_instance_growth(NULL, NULL, &why), "null");
  CHECK(!why.size);
}

/* Another thread's write: its page faults are not those of the thread that uses the store. */
static void *write_two(void *place) {
  *(char *)place = 2;
  return NULL;
}

/* Every way in which slots are reset, memories grow, and accesses are checked. */
static void strategies(void) {
  for (uint8_t reset = 0; reset <= PAGEFORK_RESET_FAULT; reset++) {
    for (uint8_t growth = 0; growth <= PAGEFORK_GROWTH_FAULT; growth++) {
      for (uint8_t bounds = 0; bounds <= PAGEFORK_BOUNDS_DUAL; bounds++) {
        pagefork_strategies_t strategies = {.reset = reset, .growth = growth, .bounds = bounds,
                                            .accessible = 2 << 16};
        if (reset == PAGEFORK_RESET_FAULT) {
          strategies.fault_threads = bounds;
          strategies.fault_eager = growth % 2;
        }
        wasm_config_t *config = wasm_config_new();
        bool is_exact = growth == PAGEFORK_GROWTH_MPROTECT || growth == PAGEFORK_GROWTH_FTRUNCATE ||
                        growth == PAGEFORK_GROWTH_FAULT;
        if (!is_exact && bounds == PAGEFORK_BOUNDS_GUARDED) {
          FAILS(pagefork_config_strategies(config, &strategies), "");
          wasm_config_delete(config);
          continue;
        }
        OK(pagefork_config_strategies(config, &strategies));
        pagefork_pool_t pool = {.kept_max = 2, .idle_milliseconds_max = UINT64_MAX};
        OK(pagefork_config_pool(config, &pool));
        wasm_engine_t *engine;
        OK(pagefork_engine_new(config, &engine));
        static const char text[] =
            "(module (memory (export \"memory\") 1) (func (export \"grow\") (result i32)"
            " (drop (memory.grow (i32.const 1))) (i32.store (i32.const 70000) (i32.const 1))"
            " (memory.size))"
            " (func (export \"read\") (result i32) (i32.load (i32.const 70000))))";
        wasm_module_t *module;
        OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
        wasm_store_t *store = wasm_store_new(engine);
        wasm_instance_t *instance = wasm_instance_new(store, module, NULL, NULL);
        pagefork_val_t result;
        for (int i = 0; i < 3; i++) {
          wasm_memory_t *memory = wasm_extern_as_memory(export_of(instance, "memory"));
          /* What C writes is known, too, before a guest runs and after. */
          char *data = wasm_memory_data(memory);
          CHECK(!data[5] && !data[40000]);
          data[5] = 1;
          FAILS(pagefork_func_call(export_func(instance, "read"), NULL, 0, &result, 1), "bounds");
          OK(pagefork_func_call(export_func(instance, "grow"), NULL, 0, &result, 1));
          CHECK(result.of.i32 == 2);
          CHECK(data == wasm_memory_data(memory) && data[70000] == 1);
          pthread_t writer;
          CHECK(pthread_create(&writer, NULL, write_two, data + 40000) == 0);
          CHECK(pthread_join(writer, NULL) == 0);
          OK(pagefork_store_reset(store, NULL));
        }
        choices(instance, reset, growth);
        delete_kept();
        wasm_instance_delete(instance);
        wasm_store_delete(store);
        wasm_module_delete(module);
        wasm_engine_delete(engine);
      }
    }
  }
  wasm_config_t *config = wasm_config_new();
  pagefork_strategies_t none = {.growth = 9};
  FAILS(pagefork_config_strategies(config, &none), "9");
  none = (pagefork_strategies_t){.bounds = 9};
  FAILS(pagefork_config_strategies(config, &none), "9");
  none = (pagefork_strategies_t){.deltas = 9};
  FAILS(pagefork_config_strategies(config, &none), "9");
  none = (pagefork_strategies_t){.deltas = UINT64_MAX};
  FAILS(pagefork_config_strategies(config, &none), "18446744073709551615");
  none = (pagefork_strategies_t){.fault_threads = 257};
  FAILS(pagefork_config_strategies(config, &none), "at most 256");
  none = (pagefork_strategies_t){.reserved = {1}};
  FAILS(pagefork_config_strategies(config, &none), "reserved");
  pagefork_pool_t pool = {.reserved = {0, 0, 0, 1}};
  FAILS(pagefork_config_pool(config, &pool), "reserved");
  FAILS(pagefork_config_pool(config, NULL), "null");
  wasm_config_delete(config);
}

static void *write_page(void *page) {
  memset(page, 1, 4096);
  return NULL;
}

/* What another thread writes by a pointer to a memory, in a run in which this thread writes nothing, is known to
 * the reset: nothing but wasm_memory_data has said so. */
static void written_elsewhere(void) {
  enum { RUNS = 24, FIRST = 8 };
  static const uint8_t resets[] = {PAGEFORK_RESET_AUTO, PAGEFORK_RESET_RESIDENT, PAGEFORK_RESET_PROTECT};
  for (size_t i = 0; i < sizeof resets; i++) {
    pagefork_strategies_t strategies = {.reset = resets[i]};
    wasm_config_t *config = wasm_config_new();
    OK(pagefork_config_strategies(config, &strategies));
    wasm_engine_t *engine;
    OK(pagefork_engine_new(config, &engine));
    static const char text[] = "(module (memory (export \"memory\") 4) (func (export \"nop\")))";
    wasm_module_t *module;
    OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
    wasm_store_t *store = wasm_store_new(engine);
    wasm_instance_t *instance = wasm_instance_new(store, module, NULL, NULL);
    const wasm_func_t *nop = export_func(instance, "nop");
    wasm_memory_t *memory = wasm_extern_as_memory(export_of(instance, "memory"));
    for (int run = 0; run < RUNS; run++) {
      OK(pagefork_func_call(nop, NULL, 0, NULL, 0));
      if (run >= FIRST) {
        char *page = wasm_memory_data(memory) + (run + 1) * 4096;
        pthread_t writer;
        CHECK(pthread_create(&writer, NULL, write_page, page) == 0);
        CHECK(pthread_join(writer, NULL) == 0);
      }
      OK(pagefork_store_reset(store, NULL));
    }
    /* Only now: this thread reads no page before. */
    for (int run = FIRST; run < RUNS; run++) CHECK(!wasm_memory_data(memory)[(run + 1) * 4096]);
    delete_kept();
    wasm_instance_delete(instance);
    wasm_store_delete(store);
    wasm_module_delete(module);
    wasm_engine_delete(engine);
  }
}

/* Successive snapshots of a store that runs on, by each way of finding what was written: what is
 * spawned from each has what was there then. The host writes by a pointer that it has kept, or by one that
 * it has just asked for. */
static void deltas(bool is_kept) {
  static const char text[] =
      "(module (memory (export \"memory\") 32)"
      " (func (export \"count\") (result i32)"
      " (i32.store (i32.const 300000) (i32.add (i32.load (i32.const 300000)) (i32.const 1)))"
      " (i32.load (i32.const 300000))))";
  for (uint64_t deltas = PAGEFORK_DELTAS_OFF; deltas <= PAGEFORK_DELTAS_FAULT; deltas++) {
    pagefork_strategies_t strategies = {.deltas = deltas};
    wasm_config_t *config = wasm_config_new();
    OK(pagefork_config_strategies(config, &strategies));
    wasm_engine_t *engine;
    OK(pagefork_engine_new(config, &engine));
    wasm_module_t *module;
    OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
    wasm_store_t *store = wasm_store_new(engine), *spawned;
    wasm_instance_t *instance = wasm_instance_new(store, module, NULL, NULL), *other;
    wasm_memory_t *memory = wasm_extern_as_memory(export_of(instance, "memory"));
    char *bytes = is_kept ? wasm_memory_data(memory) : NULL;
    pagefork_val_t result;
    pagefork_snapshot_t *taken[5];
    for (int32_t i = 0; i < 5; i++) {
      OK(pagefork_func_call(export_func(instance, "count"), NULL, 0, &result, 1));
      CHECK(result.of.i32 == i + 1);
      /* The host writes, too: a page that was not written before, and one that was. */
      memset((is_kept ? bytes : wasm_memory_data(memory)) + (400 + i) * 4096, i + 1, 4096);
      (is_kept ? bytes : wasm_memory_data(memory))[7] = (char)i;
      OK(pagefork_store_snapshot(store, &taken[i]));
    }
    for (int32_t i = 4; i >= 0; i--) {
      pagefork_instance_pre_t *pre;
      OK(pagefork_snapshot_instance_pre(taken[i], &pre));
      OK(pagefork_instance_pre_spawn(pre, NULL, &spawned, &other));
      const char *data = wasm_memory_data(wasm_extern_as_memory(export_of(other, "memory")));
      CHECK(data[7] == i);
      for (int32_t page = 0; page < 5; page++) {
        CHECK(data[(400 + page) * 4096 + 9] == (page <= i ? page + 1 : 0));
      }
      OK(pagefork_func_call(export_func(other, "count"), NULL, 0, &result, 1));
      CHECK(result.of.i32 == i + 2);
      delete_kept();
      wasm_instance_delete(other);
      wasm_store_delete(spawned);
      pagefork_instance_pre_delete(pre);
      pagefork_snapshot_delete(taken[i]);
    }
    wasm_instance_delete(instance);
    wasm_store_delete(store);
    wasm_module_delete(module);
    wasm_engine_delete(engine);
  }
}

int main(void) {
  wasm_engine_t *engine = wasm_engine_new();
  wasm_store_t *store = wasm_store_new(engine);
  pagefork_linker_t *linker;
  OK(pagefork_linker_new(engine, &linker));
  wasm_functype_t *type = wasm_functype_new_1_1(wasm_valtype_new_i32(), wasm_valtype_new_i32());
  OK(pagefork_linker_func(linker, "host", "ask", type, ask, NULL, NULL));
  wasm_functype_delete(type);
  wasm_module_t *module;
  OK(pagefork_module_new(engine, guest_suspended, sizeof guest_suspended, &module));
  wasm_instance_t *instance;
  OK(pagefork_linker_instantiate(linker, store, module, &instance));
  suspension(store, instance);
  exceptions(store, instance);
  delete_kept();
  wrapped(engine, module);
  snapshots(engine, linker, module);
  programs(engine);
  strategies();
  written_elsewhere();
  deltas(false);
  deltas(true);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
  wasm_module_delete(module);
  pagefork_linker_delete(linker);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
