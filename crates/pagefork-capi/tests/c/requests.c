/* An instance a request, which allocates nothing: what C owns lies in its store, as far as there are
 * places. What was deleted is seen until something else takes its place. */

#include <malloc.h>

#include "check.h"
#include "pagefork.h"

#define OK(call) RETURNS(call)
#define FAILS(call, text) TRAPS((call), (text))

/* Allocations are counted where nothing else stands between this program and the C library. */
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
/* This thread's: another one of the library takes back what is idle or where memory is short. */
static _Thread_local size_t allocations;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* What is used after it was freed is not what it was. */
void free(void *memory) {
  size_t size = memory ? malloc_usable_size(memory) : 0;
  if (size > 0) memset(memory, 0xdd, size < 4096 ? size : 4096);
  __libc_free(memory);
}

void *malloc(size_t size) {
  allocations++;
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  allocations++;
  return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
  allocations++;
  return __libc_realloc(old, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  allocations++;
  *out = __libc_memalign(alignment, size);
  return *out ? 0 : 12;
}

void *aligned_alloc(size_t alignment, size_t size) {
  allocations++;
  return __libc_memalign(alignment, size);
}
#define ALLOCATIONS allocations
#else
#define ALLOCATIONS ((size_t)0)
#endif

static pagefork_instance_pre_t *pre;
static pagefork_export_t *found, *memory_found;

static int64_t seven(const pagefork_caller_t *caller, int32_t times) {
  (void)caller;
  return 7 * times;
}

/* A request whose function is found once, by its name, or as an object by its name. */
static void request(int by_name, int32_t number) {
  wasm_store_t *store;
  wasm_instance_t *instance;
  pagefork_typed_func_t *func;
  wasm_extern_t *memory, *external = NULL;
  OK(pagefork_instance_pre_spawn(pre, NULL, &store, &instance));
  if (by_name == 2) {
    OK(pagefork_instance_typed_func(instance, "run", "i:I", &func));
  } else if (by_name) {
    OK(pagefork_instance_export(instance, "run", &external));
    OK(pagefork_func_typed(wasm_extern_as_func(external), "i:I", &func));
  } else {
    OK(pagefork_instance_typed_export(instance, found, &func));
  }
  OK(pagefork_instance_export_at(instance, memory_found, &memory));
  char *data = wasm_memory_data(wasm_extern_as_memory(memory));
  CHECK(data[0] == 0);
  data[0] = 1;
  int64_t answer = PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *, int32_t), func, number);
  CHECK(!func->error && answer == 7 * number);
  wasm_extern_delete(memory);
  if (external) wasm_extern_delete(external);
  /* In another order each time; the last one frees the store. */
  if (number % 2) wasm_store_delete(store);
  if (number % 3) pagefork_typed_func_delete(func);
  wasm_instance_delete(instance);
  if (!(number % 3)) pagefork_typed_func_delete(func);
  if (!(number % 2)) wasm_store_delete(store);
}

/* What a request of fresh_function has counted, and where its memory is to be 0. */
static int64_t counts(const pagefork_caller_t *caller, int32_t times) {
  int *count = pagefork_store_data(caller->store);
  if (times < 0) {
    pagefork_error_t *error;
    error = pagefork_error_new("a request that fails");
    pagefork_raise(caller, error);
    return 0;
  }
  if (count) ++*count;
  wasm_extern_t *memory;
  OK(pagefork_caller_export(caller, "memory", &memory));
  char *data = wasm_memory_data(wasm_extern_as_memory(memory));
  CHECK(data[0] == 0);
  data[0] = 1;
  wasm_extern_delete(memory);
  return 7 * times;
}

/* A typed function that is called in a fresh instance each time. */
static void fresh_function(wasm_engine_t *engine, wasm_module_t *module) {
  pagefork_linker_t *linker;
  pagefork_instance_pre_t *counting;
  OK(pagefork_linker_new(engine, &linker));
  OK(pagefork_linker_func_wrap(linker, "host", "seven", PAGEFORK_WRAP(counts, int64_t, int32_t), NULL, NULL));
  OK(pagefork_linker_instantiate_pre(linker, module, &counting));
  int count = 0;
  pagefork_typed_func_t *func;
  OK(pagefork_instance_pre_typed_export(counting, NULL, &count, found, &func));
  /* It needs nothing that it was made with. */
  pagefork_instance_pre_delete(counting);
  pagefork_linker_delete(linker);
  for (int32_t i = 0; i < 20; i++) {
    int64_t answer = PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *, int32_t), func, i);
    CHECK(!func->error && answer == 7 * i && count == i + 1);
  }
  /* Failures are told; the next call is another instance's. */
  CHECK(PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *, int32_t), func, -1) == 0);
  wasm_trap_t *error = func->error;
  func->error = NULL;
  CHECK(PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *, int32_t), func, 2) == 14);
  TRAPS(error, "a request that fails");
  CHECK(!func->error && count == 21);
  pagefork_typed_func_delete(func);

  OK(pagefork_instance_pre_typed_export(pre, &(pagefork_spawn_t){.tenant = 3}, NULL, found, &func));
  size_t before = 0;
  for (int round = 0; round < 2; round++) {
    before = ALLOCATIONS;
    for (int32_t i = 0; i < 1000; i++) {
      CHECK(PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *, int32_t), func, i) == 7 * i);
    }
  }
  CHECK(ALLOCATIONS == before);
  pagefork_typed_func_delete(func);

  FAILS(pagefork_instance_pre_typed_export(pre, NULL, NULL, memory_found, &func), "signature");
  CHECK(!func);
  FAILS(pagefork_instance_pre_typed_export(NULL, NULL, NULL, found, &func), "null");
  FAILS(pagefork_instance_pre_typed_export(pre, NULL, NULL, NULL, &func), "null");
  FAILS(pagefork_instance_pre_typed_export(pre, NULL, NULL, found, NULL), "null");
  FAILS(pagefork_instance_pre_typed_export(pre, &(pagefork_spawn_t){.reserved = {1}}, NULL, found,
                                           &func), "reserved");
  static const char other_text[] = "(module (func (export \"run\") (param i32) (result i64)"
                                   "  (i64.const 0)))";
  wasm_module_t *other;
  pagefork_export_t *other_found;
  OK(pagefork_module_new(engine, other_text, sizeof other_text - 1, &other));
  OK(pagefork_module_export(other, "run", "i:I", &other_found));
  FAILS(pagefork_instance_pre_typed_export(pre, NULL, NULL, other_found, &func), "another module");
  pagefork_export_delete(other_found);
  wasm_module_delete(other);
}

/* More objects than there are places, which go in any order. */
static void many(void) {
  wasm_store_t *store;
  wasm_instance_t *instance;
  OK(pagefork_instance_pre_spawn(pre, NULL, &store, &instance));
  wasm_instance_t *copies[20];
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 20; i++) copies[i] = wasm_instance_copy(instance);
    for (int i = 0; i < 20; i++) {
      for (int j = 0; j < i; j++) CHECK(copies[i] != copies[j]);
      CHECK(wasm_instance_same(copies[i], instance));
    }
    for (int i = 0; i < 20; i++) wasm_instance_delete(copies[(i * 7 + round) % 20]);
  }
  wasm_store_t *copy = pagefork_store_copy(store);
  wasm_store_delete(store);
  wasm_instance_delete(instance);
  /* It is there as long as one has it. */
  CHECK(pagefork_store_data(copy) == NULL);
  wasm_store_delete(copy);
}

static bool last_error_says(const char *text) {
  pagefork_error_t *error = pagefork_last_error();
  if (!error) return false;
  wasm_message_t message;
  wasm_trap_message(error, &message);
  bool says = strstr(message.data, text) != NULL;
  wasm_byte_vec_delete(&message);
  wasm_trap_delete(error);
  return says;
}

/* Objects of a store that is there, after they were deleted. */
static void deleted(void) {
  wasm_store_t *store;
  wasm_instance_t *instance;
  OK(pagefork_instance_pre_spawn(pre, NULL, &store, &instance));
  wasm_extern_t *external;
  pagefork_typed_func_t *func;
  OK(pagefork_instance_export(instance, "run", &external));
  OK(pagefork_instance_typed_export(instance, found, &func));
  CHECK(!last_error_says(""));
  wasm_extern_delete(external);
  pagefork_typed_func_delete(func);
  CHECK(!last_error_says(""));

  CHECK(PAGEFORK_CALL(func, int64_t, (pagefork_typed_func_t *, int32_t), func, 1) == 0);
  CHECK(last_error_says("deleted"));
  CHECK(wasm_extern_kind(external) == 0 && last_error_says("deleted"));
  CHECK(!wasm_extern_as_func(external));
  CHECK(!wasm_extern_copy(external) && last_error_says("deleted"));
  wasm_extern_delete(external);
  CHECK(last_error_says("deleted"));
  pagefork_typed_func_delete(func);
  CHECK(last_error_says("deleted"));
  wasm_instance_delete(instance);
  wasm_instance_delete(instance);
  CHECK(last_error_says("deleted"));
  wasm_store_delete(store);
}

/* How many objects of one kind: far more than lie in the store itself. */
enum { DELETED_COUNT = 20 };

/* The same of far more objects than lie in the store itself. */
static void many_deleted(void) {
  wasm_store_t *store;
  wasm_instance_t *instance;
  OK(pagefork_instance_pre_spawn(pre, NULL, &store, &instance));
  wasm_instance_t *instances[DELETED_COUNT];
  wasm_extern_t *funcs[DELETED_COUNT], *memories[DELETED_COUNT];
  wasm_foreign_t *foreign[DELETED_COUNT];
  wasm_trap_t *traps[DELETED_COUNT];
  pagefork_typed_func_t *typed[DELETED_COUNT];
  wasm_ref_t *refs[5 * DELETED_COUNT];
  size_t count = 0;
  for (int i = 0; i < DELETED_COUNT; i++) {
    instances[i] = wasm_instance_copy(instance);
    OK(pagefork_instance_export(instance, "run", &funcs[i]));
    OK(pagefork_instance_export(instance, "memory", &memories[i]));
    OK(pagefork_instance_typed_export(instance, found, &typed[i]));
    foreign[i] = wasm_foreign_new(store);
    traps[i] = wasm_trap_new(store, NULL);
    refs[count++] = wasm_instance_as_ref(instances[i]);
    refs[count++] = wasm_extern_as_ref(funcs[i]);
    refs[count++] = wasm_extern_as_ref(memories[i]);
    refs[count++] = wasm_foreign_as_ref(foreign[i]);
    refs[count++] = wasm_trap_as_ref(traps[i]);
  }
  CHECK(!last_error_says(""));
  for (size_t i = 0; i < count; i++) {
    wasm_ref_delete(refs[(i * 7) % count]);
    if (i < DELETED_COUNT) pagefork_typed_func_delete(typed[i]);
  }
  CHECK(!last_error_says(""));

  wasm_val_vec_t none = WASM_EMPTY_VEC;
  for (size_t i = 0; i < count; i++) {
    CHECK(!wasm_ref_copy(refs[i]) && last_error_says("deleted"));
    /* What they were is not known any more. */
    CHECK(!wasm_ref_same(refs[i], refs[0]) && last_error_says("deleted"));
    CHECK(!wasm_ref_same(refs[i], wasm_instance_as_ref(instance)) && last_error_says("deleted"));
    CHECK(!wasm_ref_as_func(refs[i]) && !wasm_ref_as_instance(refs[i]) && !wasm_ref_as_trap(refs[i]));
    CHECK(!wasm_ref_get_host_info(refs[i]) && last_error_says("deleted"));
    wasm_ref_set_host_info(refs[i], &none);
    CHECK(last_error_says("deleted"));
    wasm_ref_delete(refs[i]);
    CHECK(last_error_says("deleted"));
  }
  for (int i = 0; i < DELETED_COUNT; i++) {
    CHECK(wasm_extern_kind(funcs[i]) == 0 && last_error_says("deleted"));
    CHECK(!wasm_extern_type(memories[i]) && last_error_says("deleted"));
    /* By the name of its kind, as C would have kept it. */
    TRAPS(wasm_func_call((wasm_func_t *)funcs[i], &none, &none), "deleted");
    FAILS(pagefork_func_call((wasm_func_t *)funcs[i], NULL, 0, NULL, 0), "deleted");
    CHECK(!wasm_memory_data((wasm_memory_t *)memories[i]) && last_error_says("deleted"));
    CHECK(wasm_memory_size((wasm_memory_t *)memories[i]) == 0 && last_error_says("deleted"));
    pagefork_typed_func_t *again;
    FAILS(pagefork_instance_typed_export(instances[i], found, &again), "deleted");
    wasm_extern_t *external;
    FAILS(pagefork_instance_export(instances[i], "run", &external), "deleted");
    wasm_message_t message;
    wasm_trap_message(traps[i], &message);
    CHECK(message.size == 0 && last_error_says("deleted"));
    CHECK(!wasm_trap_origin(traps[i]) && last_error_says("deleted"));
    CHECK(PAGEFORK_CALL(typed[i], int64_t, (pagefork_typed_func_t *, int32_t), typed[i], 1) == 0);
    CHECK(last_error_says("deleted"));
    pagefork_typed_func_delete(typed[i]);
    CHECK(last_error_says("deleted"));
  }

  /* Their places are taken again, each once, and those that lie there are as good as any. */
  for (size_t i = 0; i < count; i++) refs[i] = wasm_ref_copy(wasm_instance_as_ref(instance));
  for (size_t i = 0; i < count; i++) {
    for (size_t j = 0; j < i; j++) CHECK(refs[i] != refs[j]);
    CHECK(wasm_ref_same(refs[i], wasm_instance_as_ref(instance)));
  }
  CHECK(!last_error_says(""));
  for (size_t i = 0; i < count; i++) wasm_ref_delete(refs[i]);
  wasm_instance_delete(instance);
  wasm_store_delete(store);
}

static wasm_extern_t *kept_memory;

/* Called by a start function, when C has no store yet: it keeps an object, and fails if it is asked to. */
static void started(const pagefork_caller_t *caller, int32_t fails) {
  OK(pagefork_caller_export(caller, "memory", &kept_memory));
  CHECK(wasm_memory_size(wasm_extern_as_memory(kept_memory)) == 1);
  if (fails) pagefork_raise(caller, wasm_trap_new(caller->store, NULL));
}

/* Of a store whose start function has failed nothing is reached by what C has kept of it. */
static void failed_start(wasm_engine_t *engine) {
  static const char text[] = "(module (import \"host\" \"started\" (func $started (param i32)))"
                             "  (memory (export \"memory\") 1)"
                             "  (func $start (call $started (i32.const %d))) (start $start))";
  for (int fails = 0; fails < 2; fails++) {
    char module_text[sizeof text];
    int length = snprintf(module_text, sizeof module_text, text, fails);
    wasm_module_t *module;
    pagefork_linker_t *linker;
    pagefork_instance_pre_t *starting;
    wasm_store_t *store;
    wasm_instance_t *instance;
    OK(pagefork_module_new(engine, module_text, (size_t)length, &module));
    OK(pagefork_linker_new(engine, &linker));
    OK(pagefork_linker_func_wrap(linker, "host", "started", PAGEFORK_WRAP(started, void, int32_t), NULL, NULL));
    OK(pagefork_linker_instantiate_pre(linker, module, &starting));
    pagefork_error_t *error = pagefork_instance_pre_spawn(starting, NULL, &store, &instance);
    CHECK(!error == !fails);
    wasm_extern_t *again = NULL;
    if (fails) {
      wasm_trap_delete(error);
      CHECK(!last_error_says(""));
      CHECK(wasm_memory_size(wasm_extern_as_memory(kept_memory)) == 0 && last_error_says("being made"));
    } else {
      CHECK(wasm_memory_size(wasm_extern_as_memory(kept_memory)) == 1);
      OK(pagefork_instance_export(instance, "memory", &again));
      wasm_extern_delete(again);
      wasm_instance_delete(instance);
      wasm_store_delete(store);
    }
    wasm_extern_delete(kept_memory);
    pagefork_instance_pre_delete(starting);
    pagefork_linker_delete(linker);
    wasm_module_delete(module);
  }
}

int main(void) {
  wasm_engine_t *engine;
  wasm_module_t *module;
  pagefork_linker_t *linker;
  static const char text[] =
      "(module (import \"host\" \"seven\" (func $seven (param i32) (result i64)))"
      "  (memory (export \"memory\") 1)"
      "  (func (export \"run\") (param i32) (result i64) (call $seven (local.get 0))))";
  OK(pagefork_engine_new(NULL, &engine));
  OK(pagefork_module_new(engine, text, sizeof text - 1, &module));
  OK(pagefork_linker_new(engine, &linker));
  OK(pagefork_linker_func_wrap(linker, "host", "seven", PAGEFORK_WRAP(seven, int64_t, int32_t), NULL, NULL));
  OK(pagefork_linker_instantiate_pre(linker, module, &pre));
  OK(pagefork_module_export(module, "run", "i:I", &found));
  OK(pagefork_module_export(module, "memory", NULL, &memory_found));

  for (int by_name = 0; by_name < 3; by_name++) {
    for (int32_t i = 0; i < 20; i++) request(by_name, i);
    size_t before = ALLOCATIONS;
    for (int32_t i = 0; i < 1000; i++) request(by_name, i);
    CHECK(ALLOCATIONS == before);
  }
  fresh_function(engine, module);
  many();
  deleted();
  many_deleted();
  failed_start(engine);

  pagefork_export_delete(found);
  pagefork_export_delete(memory_found);
  pagefork_instance_pre_delete(pre);
  pagefork_linker_delete(linker);
  wasm_module_delete(module);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
