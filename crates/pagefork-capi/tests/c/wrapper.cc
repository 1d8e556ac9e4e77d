// The C++ wrapper: calls, host functions and their exceptions, programs, spawning.

#include "pagefork.hh"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "guests.h"

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);            \
      std::exit(1);                                                                             \
    }                                                                                           \
  } while (0)

template <typename F> static std::string thrown_by(F function) {
  try {
    function();
  } catch (const pagefork::Error &error) {
    return error.what();
  }
  return "nothing";
}

static bool contains(const std::string &text, const char *part) {
  return text.find(part) != std::string::npos;
}

// Functions that are begun, with each type of result, and calls that wait for them.
static void asynchronous(pagefork::Engine &engine) {
  using namespace pagefork;
  Module module(engine, R"((module
    (import "host" "add" (func $add (param i32 i64 f32 f64) (result f64)))
    (import "host" "nothing" (func $nothing))
    (import "host" "throws" (func $throws (param i64) (result i64)))
    (func (export "add") (param i32 i64 f32 f64) (result f64)
      (call $add (local.get 0) (local.get 1) (local.get 2) (local.get 3)))
    (func (export "nothing") (call $nothing))
    (func (export "throws") (param i64) (result i64) (call $throws (local.get 0)))))");
  Linker linker(engine);
  Completion<double> waits;
  Completion<void> nothing;
  linker.func_async<double(int32_t, int64_t, float, double)>(
      "host", "add", [&](Caller, int32_t a, int64_t b, float c, double d, Completion<double> done) {
        if (a == 0) return done.finish(double(b) + c + d);
        if (a == 1) return done.fail("no sum");
        if (a == 2) waits = std::move(done);
      });
  linker.func_async<void()>("host", "nothing",
                            [&](Caller, Completion<void> done) { nothing = std::move(done); });
  linker.func_async<int64_t(int64_t)>(
      "host", "throws", [](Caller, int64_t a, Completion<int64_t> done) -> void {
        if (a == 0) throw std::runtime_error("thrown");
        if (a == 1) throw 1;
        done.finish(-a);
      });
  Store store(engine);
  Instance instance = linker.instantiate(store, module);
  using Add = double(int32_t, int64_t, float, double);
  auto sum = instance.call_async<Add>("add", 0, 1, 2.5f, 3.5);
  CHECK(sum.poll() && sum.result() == 7);
  sum = instance.call_async<Add>("add", 1, 1, 2.5f, 3.5);
  CHECK(sum.poll() && contains(thrown_by([&] { sum.result(); }), "no sum"));
  // Given up, as nothing keeps its completion.
  sum = instance.call_async<Add>("add", 3, 1, 2.5f, 3.5);
  CHECK(sum.wait() && contains(thrown_by([&] { sum.result(); }), "given up"));
  int told = 0;
  sum = instance.call_async_notifying<Add>([&] { told++; }, "add", 2, 1, 2.5f, 3.5);
  CHECK(!sum.poll() && !sum.wait(1000000) && waits.is_wanted() && told == 0);
  waits.finish(9);
  CHECK(told == 1 && sum.poll() && sum.result() == 9);
  auto none = instance.call_async<void()>("nothing");
  CHECK(!none.poll());
  nothing.finish();
  CHECK(none.poll());
  none.result();
  // A call that goes before it has ended.
  CHECK(!instance.call_async<void()>("nothing").poll());
  CHECK(!nothing.is_wanted());
  CHECK(contains(thrown_by([&] { instance.call_async<int32_t()>("nothing"); }), "mismatch"));
  for (int64_t a : {0, 1}) {
    auto call = instance.call_async<int64_t(int64_t)>("throws", a);
    CHECK(call.poll() && thrown_by([&] { call.result(); }) ==
                             (a == 0 ? "thrown" : "an exception of a host function"));
  }
  auto minus = instance.call_async<int64_t(int64_t)>("throws", int64_t(1) << 40);
  CHECK(minus.poll() && minus.result() == -(int64_t(1) << 40));
}

int main() {
  using namespace pagefork;
  Engine engine;
  Linker linker(engine);
  int calls = 0;
  linker.func<double(int32_t, int64_t)>("host", "add", [&](Caller, int32_t a, int64_t b) {
    calls++;
    if (a == -1) throw std::runtime_error("minus one");
    return double(a) + double(b);
  });
  linker.func<void(uint32_t, uint32_t)>("host", "log", [](Caller caller, uint32_t at, uint32_t n) {
    CHECK(std::string(caller.memory().data + at, n) == "hello");
    caller.memory("no such");
  });
  Module module(engine, R"((module
    (import "host" "add" (func $add (param i32 i64) (result f64)))
    (import "host" "log" (func $log (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "hello")
    (global $count (mut i32) (i32.const 0))
    (func (export "add") (param i32 i64) (result f64) (call $add (local.get 0) (local.get 1)))
    (func (export "log") (call $log (i32.const 8) (i32.const 5)))
    (func (export "count") (result i32)
      (global.set $count (i32.add (global.get $count) (i32.const 1))) (global.get $count))))");
  Store store(engine);
  Instance instance = linker.instantiate(store, module);
  auto add = instance.func<double(int32_t, int64_t)>("add");
  CHECK(add(2, 3) == 5 && calls == 1);
  CHECK(thrown_by([&] { add(-1, 0); }) == "minus one");
  CHECK(add(4, 5) == 9);
  CHECK(contains(thrown_by([&] { instance.func<void()>("log")(); }), "no such"));
  CHECK(contains(thrown_by([&] { instance.func<void()>("add"); }), "type mismatch"));
  CHECK(contains(thrown_by([&] { instance.func<void()>("none"); }), "none"));
  CHECK(contains(thrown_by([&] { Module(engine, "(modul)"); }), "modul"));
  CHECK(instance.memory().size == 65536 && instance.memory().data[8] == 'h');
  auto count = instance.func<int32_t()>("count");
  CHECK(count() == 1 && count() == 2);
  store.reset();
  CHECK(count() == 1);

  InstancePre pre = linker.instantiate_pre(module);
  for (int i = 0; i < 3; i++) {
    auto [own_store, own] = pre.spawn();
    own_store.set_limits({});
    own_store.set_timeout(1000000000);
    CHECK(own.func<int32_t()>("count")() == 1);
  }

  asynchronous(engine);

  Wasi wasi;
  wasi.arg("program").env("A", "b").stdin_bytes("text").capture_stdout(100).directory(".", "/");
  Linker programs(engine);
  programs.wasi();
  std::string_view bytes(reinterpret_cast<const char *>(guest_program), sizeof guest_program);
  pagefork_spawn_t how = {};
  how.wasi = wasi.get();
  auto [program_store, program] = programs.instantiate_pre(Module(engine, bytes)).spawn(how);
  try {
    program.start();
    CHECK(false);
  } catch (const Error &error) {
    int32_t status = 0;
    CHECK(error.exit_status(status) && status == 3 && error.kind() == PAGEFORK_ERROR_HOST);
    CHECK(error.trap_code() == PAGEFORK_TRAP_NONE);
  }
  CHECK(program_store.take_output() == "text");
  program_store.reset(&wasi);
  program_store.set_wasi(wasi);
  std::puts("ok");
}
