// A fresh instance for each request, in the pages of the one before.

#include <pagefork.hh>

#include <iostream>

int main() {
  pagefork::Engine engine;
  pagefork::Module module(engine, R"((module
    (global $seen (mut i32) (i32.const 0))
    (func (export "handle") (param i32) (result i32)
      (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
      (i32.add (i32.mul (local.get 0) (i32.const 10)) (global.get $seen)))))");
  pagefork::InstancePre pre = pagefork::Linker(engine).instantiate_pre(module);

  // A request that is one call: there is no store to hold. The export was found once.
  auto handle = pre.fresh<int32_t(int32_t)>(module, "handle");
  int32_t sum = 0;
  for (int32_t request = 0; request < 500; request++) sum += handle(request);

  // A request that is more: its pages go to the next one when the last object of its store goes.
  for (int32_t request = 500; request < 1000; request++) {
    pagefork_spawn_t how = {};
    how.tenant = static_cast<uint64_t>(request % 10);
    auto [store, instance] = pre.spawn(how);
    store.set_timeout(1000 * 1000 * 1000);
    sum += instance.func<int32_t(int32_t)>("handle")(request);
  }
  // Each instance has seen one request.
  std::cout << "sum of the answers: " << sum << "\n";
}
