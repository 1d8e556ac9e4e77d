// Limits and timeouts: a guest that takes too much memory or time is stopped, and can be used again.

#include <pagefork.hh>

#include <iostream>

int main() {
  pagefork::Engine engine;
  pagefork::Module module(engine, R"((module (memory 1)
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "spin") (loop (br 0)))))");
  pagefork::Store store(engine);
  pagefork_limits_t limits = {};
  limits.memory_size = 10 << 16;
  store.set_limits(limits);
  store.set_timeout(10 * 1000 * 1000);
  pagefork::Instance instance = pagefork::Linker(engine).instantiate(store, module);

  auto grow = instance.func<int32_t(int32_t)>("grow");
  auto spin = instance.func<void()>("spin");
  std::cout << "growing by 9 pages: " << grow(9) << "\n";
  std::cout << "by another: " << grow(1) << "\n";
  try {
    spin();
  } catch (const pagefork::Error &error) {
    std::cout << "an endless loop: " << error.what() << "\n";
    if (error.trap_code() != PAGEFORK_TRAP_INTERRUPT) return 1;
  }
  std::cout << "still there: " << grow(0) << " pages\n";
}
