// Untrusted plugins in one store: it is reset between them, and nothing of one is left to the next.

#include <pagefork.hh>

#include <iostream>

int main() {
  pagefork::Config config(wasm_config_new());
  pagefork_strategies_t strategies = {};
  strategies.clear_stack = true;
  pagefork::check(pagefork_config_strategies(config.get(), &strategies));
  pagefork::Engine engine(std::move(config));
  pagefork::Module module(engine, R"((module
    (memory (export "memory") 1)
    (func (export "keep") (param i32) (i32.store (i32.const 0) (local.get 0)))
    (func (export "find") (result i32) (i32.load (i32.const 0)))))");
  pagefork::Store store(engine);
  pagefork::Instance instance = pagefork::Linker(engine).instantiate(store, module);

  // Objects stay good when the store is reset.
  auto keep = instance.func<void(int32_t)>("keep");
  auto find = instance.func<int32_t()>("find");
  for (int32_t plugin = 1; plugin <= 3; plugin++) {
    std::cout << "plugin " << plugin << " finds " << find() << "\n";
    keep(1000 + plugin);
    store.reset();
  }
}
