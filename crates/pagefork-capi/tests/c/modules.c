/* Modules, instances and traps: what they say, sharing and serializing, frames, re-entry. */

#include "check.h"

static void modules(wasm_engine_t *engine) {
  wasm_store_t *store = wasm_store_new(engine);
  wasm_byte_vec_t binary = GUEST(numbers), broken = GUEST(numbers);
  broken.size /= 2;
  CHECK(wasm_module_validate(store, &binary) && !wasm_module_validate(store, &broken));
  CHECK(!wasm_module_new(store, &broken) && !wasm_module_new(store, NULL));
  wasm_module_t *module = wasm_module_new(store, &binary);
  CHECK(module);
  wasm_exporttype_vec_t exports;
  wasm_module_exports(module, &exports);
  CHECK(exports.size == 8);
  wasm_exporttype_vec_delete(&exports);

  /* Bytes, damaged bytes, and a module of them. */
  wasm_byte_vec_t bytes;
  wasm_module_serialize(module, &bytes);
  CHECK(bytes.size > binary.size);
  wasm_module_t *same = wasm_module_deserialize(store, &bytes);
  wasm_module_exports(same, &exports);
  CHECK(exports.size == 8);
  wasm_exporttype_vec_delete(&exports);
  bytes.data[bytes.size / 2] ^= 1;
  CHECK(!wasm_module_deserialize(store, &bytes));
  wasm_byte_vec_delete(&bytes);
  CHECK(!wasm_module_same(module, same));

  /* A shared module outlives its store, and is the same in others of its engine. */
  wasm_shared_module_t *shared = wasm_module_share(module);
  wasm_module_delete(same);
  wasm_module_delete(module);
  wasm_store_delete(store);
  store = wasm_store_new(engine);
  wasm_module_t *a = wasm_module_obtain(store, shared), *b = wasm_module_obtain(store, shared);
  CHECK(a && wasm_module_same(a, b));
  wasm_engine_t *other = wasm_engine_new();
  wasm_store_t *stranger = wasm_store_new(other);
  CHECK(!wasm_module_obtain(stranger, shared));
  wasm_store_delete(stranger);
  wasm_engine_delete(other);
  wasm_shared_module_delete(shared);
  wasm_module_delete(a);

  /* Imports that do not fit. */
  wasm_trap_t *trap;
  CHECK(!wasm_instance_new(store, b, NULL, &trap));
  TRAPS(trap, "imports");
  CHECK(!wasm_instance_new(store, b, NULL, NULL));
  wasm_extern_t *nothing[2] = {NULL, NULL};
  wasm_extern_vec_t nulls = WASM_ARRAY_VEC(nothing);
  CHECK(!wasm_instance_new(store, b, &nulls, &trap));
  TRAPS(trap, "null");
  wasm_module_delete(b);

  module = COMPILE(store, start_traps);
  CHECK(!wasm_instance_new(store, module, NULL, &trap));
  wasm_frame_t *origin = wasm_trap_origin(trap);
  CHECK(origin && wasm_frame_func_index(origin) == 0);
  wasm_frame_delete(origin);
  TRAPS(trap, "unreachable");
  delete_kept();
  wasm_store_delete(store);
}

/* What the callback does is its argument. */
enum { TRAP, TRAP_WITH_FRAMES, NESTED, WRONG_RESULT, NOTHING };

static wasm_store_t *store;
static wasm_func_t *divide, *fail_again;
static wasm_trap_t *made;
static int finalized;

static void finalize(void *data) {
  CHECK(data == &made);
  finalized++;
}

static wasm_trap_t *call(wasm_func_t *func, int32_t argument) {
  wasm_val_t in[] = {WASM_I32_VAL(argument)}, out[1];
  wasm_val_vec_t args = WASM_ARRAY_VEC(in), results = WASM_ARRAY_VEC(out);
  if (wasm_func_result_arity(func) == 0) results.size = 0;
  return wasm_func_call(func, &args, &results);
}

static wasm_trap_t *fail(void *env, const wasm_val_vec_t *args, wasm_val_vec_t *results) {
  (void)env, (void)results;
  switch (args->data[0].of.i32) {
    case TRAP: return wasm_trap_copy(made);
    case TRAP_WITH_FRAMES: {
      wasm_message_t message;
      wasm_name_new_from_string_nt(&message, "in the callback");
      wasm_trap_t *trap = wasm_trap_new(store, &message);
      wasm_name_delete(&message);
      return trap;
    }
    case NESTED: return call(divide, 0);
    case WRONG_RESULT: return call(fail_again, TRAP_WITH_FRAMES);
    default: return NULL;
  }
}

/* Indices of the functions in a trap's frames, outermost first, as digits. */
static int functions_of(wasm_trap_t *trap, wasm_instance_t *instance) {
  wasm_frame_vec_t trace, copy;
  wasm_trap_trace(trap, &trace);
  wasm_frame_vec_copy(&copy, &trace);
  CHECK(copy.size == trace.size);
  int digits = 0;
  for (size_t i = trace.size; i-- > 0;) {
    wasm_frame_t *frame = wasm_frame_copy(copy.data[i]);
    CHECK(wasm_instance_same(wasm_frame_instance(frame), instance));
    CHECK(wasm_frame_func_offset(frame) > 0);
    CHECK(wasm_frame_module_offset(frame) > wasm_frame_func_offset(frame));
    digits = digits * 10 + (int)wasm_frame_func_index(frame);
    wasm_frame_delete(frame);
  }
  wasm_frame_vec_delete(&copy);
  wasm_frame_vec_new(&copy, trace.size, trace.data);
  wasm_frame_vec_delete(&copy);
  wasm_frame_vec_new_uninitialized(&copy, 1);
  wasm_frame_vec_delete(&copy);
  wasm_frame_vec_new_empty(&copy);
  /* The elements of the first went with the vector that took them over. */
  trace.size = 0;
  wasm_frame_vec_delete(&trace);
  return digits;
}

static void traps(wasm_engine_t *engine) {
  store = wasm_store_new(engine);
  wasm_module_t *module = COMPILE(store, traps);
  wasm_functype_t *type = wasm_functype_new_1_0(wasm_valtype_new_i32());
  wasm_func_t *host = wasm_func_new_with_env(store, type, fail, NULL, NULL);
  wasm_functype_delete(type);
  wasm_extern_t *externs[] = {wasm_func_as_extern(host)};
  wasm_extern_vec_t imports = WASM_ARRAY_VEC(externs);
  wasm_instance_t *instance = wasm_instance_new(store, module, &imports, NULL);
  divide = find_func(module, instance, "divide");
  wasm_func_t *guest = find_func(module, instance, "fail"), *deep = find_func(module, instance, "deep");
  fail_again = guest;

  /* A guest's own. */
  wasm_trap_t *trap = call(divide, 0);
  CHECK(functions_of(trap, instance) == 21);
  TRAPS(trap, "divide by zero");
  RETURNS(call(divide, 1));

  /* A trap of C's comes out as the same, with its message, what is attached, and frames. */
  wasm_message_t message;
  wasm_name_new_from_string_nt(&message, "no more");
  made = wasm_trap_new(store, &message);
  wasm_name_delete(&message);
  wasm_trap_set_host_info_with_finalizer(made, &made, finalize);
  CHECK(!wasm_trap_origin(made));
  trap = call(guest, TRAP);
  CHECK(wasm_trap_same(trap, made) && wasm_trap_get_host_info(trap) == &made);
  CHECK(functions_of(trap, instance) == 3);
  wasm_trap_delete(made);
  CHECK(!finalized);
  TRAPS(trap, "no more");
  CHECK(finalized == 1);

  /* One that is made in a callback has the frames that wait for it. */
  trap = call(guest, TRAP_WITH_FRAMES);
  wasm_frame_t *origin = wasm_trap_origin(trap);
  CHECK(wasm_frame_func_index(origin) == 3);
  wasm_frame_delete(origin);
  TRAPS(trap, "in the callback");

  /* Through two entries of the guest. */
  trap = call(guest, NESTED);
  CHECK(functions_of(trap, instance) == 321);
  TRAPS(trap, "divide by zero");
  trap = call(guest, WRONG_RESULT);
  CHECK(functions_of(trap, instance) == 33);
  TRAPS(trap, "in the callback");
  RETURNS(call(guest, NOTHING));
  RETURNS(call(host, NOTHING));
  trap = call(host, TRAP_WITH_FRAMES);
  CHECK(!wasm_trap_origin(trap));
  TRAPS(trap, "in the callback");

  wasm_val_vec_t none = WASM_EMPTY_VEC;
  trap = wasm_func_call(deep, &none, &none);
  wasm_frame_vec_t trace;
  wasm_trap_trace(trap, &trace);
  CHECK(trace.size == 64);
  wasm_frame_vec_delete(&trace);
  TRAPS(trap, "stack");

  CHECK(!wasm_frame_instance(NULL) && !wasm_frame_func_index(NULL));
  wasm_trap_t *empty = wasm_trap_new(store, NULL);
  wasm_trap_message(empty, &message);
  CHECK(message.size == 1 && message.data[0] == 0);
  wasm_byte_vec_delete(&message);
  wasm_trap_delete(empty);
  CHECK(!wasm_trap_new(NULL, NULL));
  wasm_func_delete(host);
  wasm_instance_delete(instance);
  delete_kept();
  wasm_store_delete(store);
}

int main(void) {
  wasm_engine_t *engine = wasm_engine_new();
  modules(engine);
  traps(engine);
  wasm_engine_delete(engine);
  puts("ok");
  return 0;
}
