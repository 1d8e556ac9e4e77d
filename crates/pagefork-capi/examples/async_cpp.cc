// A host function that takes its time, and a call that waits for it, in C++.

#include <chrono>
#include <cstdio>
#include <pagefork.hh>
#include <thread>

int main() {
  using namespace pagefork;
  Engine engine;
  Module module(engine, R"((module
    (import "host" "price" (func $price (param i32) (result f64)))
    (func (export "total") (param i32) (result f64)
      (f64.add (call $price (local.get 0)) (call $price (i32.const 100))))))");

  Linker linker(engine);
  std::thread worker;
  linker.func_async<double(int32_t)>(
      "host", "price", [&](Caller, int32_t item, Completion<double> done) {
        if (worker.joinable()) worker.join();
        worker = std::thread([item, done = std::move(done)]() mutable {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          if (item < 0) return done.fail("no such item");
          done.finish(item * 1.5);
        });
      });

  Store store(engine);
  Instance instance = linker.instantiate(store, module);
  for (int32_t item : {4, -1}) {
    // In an event loop, what is given as the last argument is called when it pays to poll again.
    auto total = instance.call_async<double(int32_t)>("total", item);
    total.wait();
    try {
      std::printf("the total is %g\n", total.result());
    } catch (const Error &error) {
      std::printf("the total is unknown: %s\n", error.what());
    }
  }
  worker.join();
}
