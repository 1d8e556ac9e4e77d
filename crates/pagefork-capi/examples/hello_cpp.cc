// The C++ wrapper: a host function with state, whose exception comes out where the guest was called.

#include <pagefork.hh>

#include <iostream>
#include <stdexcept>

int main() {
  pagefork::Engine engine;
  pagefork::Module module(engine, R"((module
    (import "host" "sqrt" (func $sqrt (param f64) (result f64)))
    (func (export "length") (param f64 f64) (result f64)
      (call $sqrt (f64.sub (f64.mul (local.get 0) (local.get 0))
                           (f64.mul (local.get 1) (local.get 1)))))))");
  pagefork::Linker linker(engine);
  int calls = 0;
  linker.func<double(double)>("host", "sqrt", [&](pagefork::Caller, double x) {
    calls++;
    if (x < 0) throw std::domain_error("no square root of a negative number");
    double root = 1;
    for (int i = 0; i < 50; i++) root = (root + x / root) / 2;
    return root;
  });
  pagefork::Store store(engine);
  auto length = linker.instantiate(store, module).func<double(double, double)>("length");
  std::cout << "length(5, 3) = " << length(5, 3) << "\n";
  try {
    length(3, 5);
  } catch (const pagefork::Error &error) {
    std::cout << "length(3, 5): " << error.what() << "\n";
  }
  std::cout << calls << " calls of the host\n";
}
