/* A host function that takes its time, in an event loop: ten guests wait at once, and none has a
 * thread. A worker answers over a pipe; any library that calls back fits as well. */

/* For usleep. */
#define _DEFAULT_SOURCE

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "example.h"

#define GUESTS 10

static const char text[] =
    "(module (import \"host\" \"price\" (func $price (param i32) (result i32)))"
    "  (func (export \"total\") (param i32) (result i32)"
    "    (i32.add (call $price (local.get 0)) (call $price (i32.const 100)))))";

/* What is asked of the worker. */
struct question {
  int32_t item;
  pagefork_completion_t *completion;
};

static int questions[2], wakeups[2];

/* Begins a call: the guest is suspended until somebody completes it. */
static void price(const pagefork_caller_t *caller, const pagefork_val_t *args, size_t count,
                  pagefork_completion_t *completion) {
  (void)caller, (void)count;
  struct question question = {args[0].of.i32, completion};
  if (write(questions[1], &question, sizeof question) != sizeof question)
    pagefork_completion_fail(completion, pagefork_error_new("the worker is gone"));
}

/* Answers, on a thread of its own. */
static void *work(void *unused) {
  struct question question;
  while (read(questions[0], &question, sizeof question) == sizeof question) {
    usleep(1000);
    pagefork_val_t result = {WASM_I32, {.i32 = question.item * 3}};
    pagefork_completion_finish(question.completion, &result, 1);
  }
  return unused;
}

/* Tells the loop which guest can go on. */
static void notify(void *guest) {
  uint8_t number = (uint8_t)(size_t)guest;
  if (write(wakeups[1], &number, 1) != 1) abort();
}

int main(void) {
  wasm_engine_t *engine;
  wasm_module_t *module;
  pagefork_linker_t *linker;
  pagefork_instance_pre_t *pre;
  check(pagefork_engine_new(NULL, &engine));
  check(pagefork_module_new(engine, text, sizeof text - 1, &module));
  check(pagefork_linker_new(engine, &linker));
  wasm_functype_t *type = wasm_functype_new_1_1(wasm_valtype_new_i32(), wasm_valtype_new_i32());
  check(pagefork_linker_func_async(linker, "host", "price", type, price, NULL, NULL));
  wasm_functype_delete(type);
  check(pagefork_linker_instantiate_pre(linker, module, &pre));

  pthread_t worker;
  if (pipe(questions) || pipe(wakeups) || pthread_create(&worker, NULL, work, NULL)) return 1;
  pagefork_call_t *calls[GUESTS];
  for (size_t i = 0; i < GUESTS; i++) {
    wasm_store_t *store;
    wasm_instance_t *instance;
    wasm_extern_t *total;
    check(pagefork_instance_pre_spawn(pre, NULL, &store, &instance));
    check(pagefork_instance_export(instance, "total", &total));
    check(pagefork_store_set_timeout(store, UINT64_C(10000000000)));
    pagefork_val_t item = {WASM_I32, {.i32 = (int32_t)i}};
    check(pagefork_func_call_async(wasm_extern_as_func(total), &item, 1, notify, (void *)i, NULL,
                                   &calls[i]));
    /* The call keeps its store. */
    wasm_extern_delete(total);
    wasm_instance_delete(instance);
    wasm_store_delete(store);
    /* From here on it is polled whenever it says so. */
    notify((void *)i);
  }

  int32_t sum = 0;
  for (int left = GUESTS; left > 0;) {
    struct pollfd ready = {wakeups[0], POLLIN, 0};
    uint8_t number;
    if (poll(&ready, 1, -1) != 1 || read(wakeups[0], &number, 1) != 1) return 1;
    if (!calls[number] || !pagefork_call_poll(calls[number])) continue;
    pagefork_val_t result;
    check(pagefork_call_results(calls[number], &result, 1));
    pagefork_call_delete(calls[number]);
    calls[number] = NULL;
    sum += result.of.i32;
    left--;
  }
  printf("sum of the totals: %d\n", (int)sum);

  close(questions[1]);
  pthread_join(worker, NULL);
  pagefork_instance_pre_delete(pre);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  return 0;
}
