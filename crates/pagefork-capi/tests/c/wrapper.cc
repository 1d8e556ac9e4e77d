// The C++ wrapper: calls, host functions and their exceptions, programs, spawning.

#include "pagefork.hh"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <sys/stat.h>

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
  Module starting(engine, R"((module (import "host" "nothing" (func $nothing)) (start $nothing)
    (func (export "add") (result i32) (i32.const 5))))");
  told = 0;
  auto start = linker.instantiate_async(store, starting, [&] { told++; });
  CHECK(!start.poll());
  nothing.finish();
  CHECK(told == 1 && start.poll() && start.instance().func<int32_t()>("add")() == 5);
  CHECK(contains(thrown_by([&] { start.instance(); }), "taken already"));
  auto spawning = linker.instantiate_pre(starting).spawn_async({}, [&] { told++; });
  CHECK(!spawning.poll());
  nothing.finish();
  CHECK(told == 2 && spawning.poll());
  auto [own_store, own] = spawning.spawned();
  CHECK(own_store.get() && own.func<int32_t()>("add")() == 5);
  CHECK(contains(thrown_by([&] { spawning.spawned(); }), "taken already"));
  auto minus = instance.call_async<int64_t(int64_t)>("throws", int64_t(1) << 40);
  CHECK(minus.poll() && minus.result() == -(int64_t(1) << 40));
}

// Guests that are suspended, captured, forked, saved and loaded, with what they hold.
static void snapshots(pagefork::Engine &engine) {
  using namespace pagefork;
  Module module(engine, R"((module
    (import "host" "ask" (func $ask (result i32)))
    (global $held (mut externref) (ref.null extern))
    (global $count (mut i32) (i32.const 0))
    (func (export "hold") (param externref) (global.set $held (local.get 0)))
    (func (export "held") (result externref) (global.get $held))
    (func (export "count") (result i32)
      (global.set $count (i32.add (global.get $count) (i32.const 1))) (global.get $count))
    (func (export "run") (param i32) (result i32) (i32.add (local.get 0) (call $ask)))
    (func (export "wait") (drop (call $ask)))))");
  Linker linker(engine);
  static bool suspends = false;
  static int32_t answer = 0;
  wasm_functype_t *type = Prototype<int32_t()>::type();
  auto ask = [](const pagefork_caller_t *caller, const pagefork_val_t *, size_t,
                pagefork_val_t *results, size_t) -> pagefork_error_t * {
    if (suspends) return pagefork_caller_suspend_before(caller);
    results[0] = value_of(answer);
    return nullptr;
  };
  check(pagefork_linker_func(linker.get(), "host", "ask", type, ask, nullptr, nullptr));
  wasm_functype_delete(type);
  Store store(engine);
  Instance instance = linker.instantiate(store, module);
  auto run = [&](const Instance &of) { return of.call_suspendable<int32_t(int32_t)>("run", 5); };

  // Suspended, resumed, forked, abandoned.
  CHECK(*run(instance) == 5 && store.suspended_at() == PAGEFORK_SUSPENDED_NOWHERE);
  suspends = true;
  CHECK(!run(instance) && !store.resume<int32_t>());
  suspends = false;
  answer = 3;
  for (Store &fork : store.fork(3)) CHECK(fork.resume<int32_t>() == 8);
  CHECK(store.resume<int32_t>() == 8);
  suspends = true;
  CHECK(!instance.call_suspendable<void()>("wait"));
  store.abandon();
  suspends = false;
  CHECK(instance.call_suspendable<void()>("wait"));
  CHECK(contains(thrown_by([&] { store.resume<void>(); }), "no suspended guest"));
  CHECK(contains(thrown_by([&] { instance.call_suspendable<void()>("run"); }), "mismatch"));

  // Reset to, saved as a delta, loaded.
  Images images("images of the wrapper");
  auto count = instance.func<int32_t()>("count");
  CHECK(count() == 1);
  Snapshot snapshot = store.snapshot();
  CHECK(count() == 2);
  store.reset_to(snapshot);
  CHECK(count() == 2 && count() == 3);
  images.set_name("first", snapshot.save(images));
  Saving delta;
  delta.state = "some state";
  delta.delta_of = &snapshot;
  suspends = true;
  CHECK(!run(instance));
  suspends = false;
  delta.signers.push_back({{1}});
  Image image = store.snapshot().save(images, delta);
  CHECK(contains(thrown_by([&] { images.set_name("/", image); }), "name"));
  CHECK(contains(thrown_by([&] { images.find("second"); }), "second"));
  images.export_to("wrapper.image", image);
  Images others("other images of the wrapper");
  CHECK(contains(thrown_by([&] { others.import_from("no file"); }), "no file"));
  others.set_name("second", others.import_from("wrapper.image"));
  Loading loading;
  loading.trusted.push_back(public_key(delta.signers[0]));
  loading.modules.push_back(module.get());
  loading.continues = &store;
  store.abandon();
  Snapshot loaded = Snapshot::load(linker, others, others.find("second"), loading);
  others.remove_name("second");
  others.collect();
  CHECK(loaded.state() == "some state");
  auto [other_store, other] = loaded.instance_pre().spawn();
  CHECK(other_store.resume<int32_t>() == 8 && other.func<int32_t()>("count")() == 4);

  // What guests hold.
  struct Held {
    std::string text;
    int &gone;
    ~Held() { gone++; }
  };
  int gone = 0;
  auto text_of_guest = [](const Instance &of) {
    pagefork_val_t held;
    check(pagefork_func_call(wasm_extern_as_func(of.export_of("held").get()), nullptr, 0, &held, 1));
    std::string text = Foreign::of<Held>(held.of.ref)->text;
    wasm_ref_delete(held.of.ref);
    return text;
  };
  auto held = [&](std::string text) {
    return Foreign(std::unique_ptr<Held>(new Held{std::move(text), gone}));
  };
  {
    Foreign foreign = held("a text");
    pagefork_val_t arg = {};
    arg.kind = WASM_EXTERNREF;
    arg.of.ref = wasm_foreign_as_ref(foreign.get());
    Extern hold = instance.export_of("hold");
    check(pagefork_func_call(wasm_extern_as_func(hold.get()), &arg, 1, nullptr, 0));
  }
  CHECK(contains(thrown_by([&] { store.snapshot(); }), "value of the host"));
  CHECK(thrown_by([&] {
          store.snapshot_with([](const wasm_ref_t *) -> Foreign { throw std::runtime_error("no"); });
        }) == "no");
  {
    Snapshot holding = store.snapshot_with(
        [&](const wasm_ref_t *object) { return held(Foreign::of<Held>(object)->text + ", kept"); });
    Saving saving;
    saving.reference = [](const wasm_ref_t *) -> std::string { throw 1; };
    CHECK(contains(thrown_by([&] { holding.save(images, saving); }), "an exception"));
    saving.reference = [](const wasm_ref_t *object) {
      return Foreign::of<Held>(object)->text + ", saved";
    };
    Image saved = holding.save(images, saving);
    Loading with_hook;
    with_hook.reference = [](std::string_view) -> Foreign { throw std::runtime_error("unread"); };
    CHECK(thrown_by([&] { Snapshot::load(linker, images, saved, with_hook); }) == "unread");
    with_hook.reference = [&](std::string_view bytes) { return held(std::string(bytes)); };
    auto pre = Snapshot::load(linker, images, saved, with_hook).instance_pre();
    auto [holding_store, holding_instance] = pre.spawn();
    CHECK(text_of_guest(holding_instance) == "a text, kept, saved");
    CHECK(gone == 0);
  }
  CHECK(gone == 2 && text_of_guest(instance) == "a text");
  store.reset();
  CHECK(gone == 3);
}

// Files of a session go where its snapshots go.
static void session(pagefork::Engine &engine, const pagefork::Linker &programs) {
  using namespace pagefork;
  CHECK(mkdir("session of the wrapper", 0700) == 0);
  Wasi streams, wasi;
  streams.capture_stdout(100);
  wasi.capture_stdout(100).session_directory("session of the wrapper", "/own");
  pagefork_spawn_t how = {}, again = {};
  how.wasi = wasi.get();
  again.wasi = streams.get();
  std::string_view bytes(reinterpret_cast<const char *>(guest_notes), sizeof guest_notes);
  auto [store, instance] = programs.instantiate_pre(Module(engine, bytes)).spawn(how);
  instance.func<void(int32_t)>("note")('a');
  Images images("images of the wrapper");
  Loading loading;
  loading.place = "other place of the wrapper";
  Snapshot loaded = Snapshot::load(
      programs, images, store.snapshot_with_files("place of the wrapper").save(images), loading);
  instance.func<void(int32_t)>("note")('b');
  auto [other_store, other] = loaded.instance_pre().spawn(again);
  other.func<void()>("show")();
  CHECK(other_store.take_output() == "a");
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
  auto fresh = pre.fresh<int32_t()>(module, "count");
  CHECK(fresh() == 1 && fresh() == 1);
  CHECK(contains(thrown_by([&] { pre.fresh<void()>(module, "count"); }), "type mismatch"));

  asynchronous(engine);
  snapshots(engine);

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
  session(engine, programs);
  std::puts("ok");
}
