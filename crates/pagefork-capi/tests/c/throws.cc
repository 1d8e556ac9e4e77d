// A function of the host that breaks its word, and throws: the process ends there, and who has called the guest gets no
// exception. The arguments say how the function is made, and how it is reached.

#include <stdexcept>
#include <string>

#include "check.h"
#include "pagefork.h"

namespace {

// Unwound, it would say so.
struct Said {
  ~Said() { puts("unwound"); }
};

[[noreturn]] void throw_it() {
  Said said;
  throw std::runtime_error("thrown");
}

int32_t wrapped(const pagefork_caller_t *, int32_t) { throw_it(); }

double wrapped_with_floats(const pagefork_caller_t *, int32_t, double) { throw_it(); }

pagefork_error_t *with_cells(const pagefork_caller_t *, pagefork_cell_t *) { throw_it(); }

pagefork_error_t *with_values(const pagefork_caller_t *, const pagefork_val_t *, size_t, pagefork_val_t *, size_t) {
  throw_it();
}

wasm_trap_t *standard(const wasm_val_vec_t *, wasm_val_vec_t *) { throw_it(); }

wasm_trap_t *standard_with_env(void *, const wasm_val_vec_t *, wasm_val_vec_t *) { throw_it(); }

void begun(const pagefork_caller_t *, const pagefork_val_t *, size_t, pagefork_completion_t *completion) {
  pagefork_completion_on_cancel(completion, [](void *) { puts("cancelled"); }, nullptr);
  throw_it();
}

wasm_func_t *make(wasm_store_t *store, const std::string &how) {
  wasm_func_t *func = nullptr;
  wasm_functype_t *type = wasm_functype_new_1_1(wasm_valtype_new_i32(), wasm_valtype_new_i32());
  if (how == "wrapped") {
    RETURNS(pagefork_func_wrap(store, PAGEFORK_WRAP(wrapped, int32_t, int32_t), nullptr, nullptr, &func));
  } else if (how == "floats") {
    RETURNS(pagefork_func_wrap(store, PAGEFORK_WRAP(wrapped_with_floats, double, int32_t, double), nullptr, nullptr,
                               &func));
  } else if (how == "cells") {
    RETURNS(pagefork_func_new_raw(store, type, with_cells, nullptr, nullptr, &func));
  } else if (how == "values") {
    RETURNS(pagefork_func_new(store, type, with_values, nullptr, nullptr, &func));
  } else if (how == "begun") {
    RETURNS(pagefork_func_new_async(store, type, begun, nullptr, nullptr, &func));
  } else if (how == "standard") {
    func = wasm_func_new(store, type, standard);
  } else if (how == "env") {
    func = wasm_func_new_with_env(store, type, standard_with_env, nullptr, nullptr);
  }
  wasm_functype_delete(type);
  CHECK(func);
  return func;
}

}  // namespace

int main(int count, char **arguments) {
  CHECK(count == 3);
  // What is said is seen though the process does not end as it should.
  setvbuf(stdout, nullptr, _IONBF, 0);
  const std::string how = arguments[1], reached = arguments[2];
  const bool floats = how == "floats";
  const std::string text =
      std::string("(module (import \"host\" \"f\" (func $f (param i32") + (floats ? " f64" : "") + ") (result " +
      (floats ? "f64" : "i32") + ")))  (func (export \"run\") (param i32) (drop (call $f (local.get 0)" +
      (floats ? " (f64.const 1)" : "") + "))))";
  wasm_engine_t *engine;
  wasm_module_t *module;
  wasm_extern_t *run;
  RETURNS(pagefork_engine_new(nullptr, &engine));
  wasm_store_t *store = wasm_store_new(engine);
  RETURNS(pagefork_module_new(engine, text.data(), text.size(), &module));
  wasm_func_t *func = make(store, how);
  wasm_extern_t *imports[] = {wasm_func_as_extern(func)};
  const wasm_extern_vec_t all = {1, imports};
  wasm_instance_t *instance = wasm_instance_new(store, module, &all, nullptr);
  CHECK(instance);
  RETURNS(pagefork_instance_export(instance, "run", &run));
  pagefork_val_t values[2] = {};
  values[0].kind = WASM_I32;
  values[1].kind = WASM_F64;
  pagefork_val_t result;
  bool suspended;
  try {
    if (reached == "directly") {
      pagefork_func_call(wasm_extern_as_func(run), values, 1, nullptr, 0);
    } else if (reached == "suspendable") {
      pagefork_func_call_suspendable(wasm_extern_as_func(run), values, 1, nullptr, 0, &suspended);
    } else if (reached == "polled") {
      pagefork_call_t *call;
      RETURNS(pagefork_func_call_async(wasm_extern_as_func(run), values, 1, nullptr, nullptr, nullptr, &call));
      pagefork_call_poll(call);
    } else if (reached == "alone") {
      pagefork_func_call(func, values, floats ? 2 : 1, &result, 1);
    }
  } catch (...) {
    puts("caught");
    return 0;
  }
  puts("returned");
  return 0;
}
