// pagefork.hh: Pagefork in C++17, on pagefork.h.
//
// Objects free what they own, and can be moved; `get` lends what the functions of wasm.h and
// pagefork.h take. Whatever fails throws an `Error`. Exceptions of host functions end the guests
// that have called them, and go on where these were called, as an `Error` with their text.
//
// An object keeps its store alive. A store, with all that is of it, is used by one thread at a time.

#ifndef PAGEFORK_HH
#define PAGEFORK_HH

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "pagefork.h"

namespace pagefork {

// Owns a `T` of C's, which `Delete` frees.
template <typename T, void (*Delete)(T *)> class Owned {
 public:
  explicit Owned(T *object = nullptr) : object_(object) {}

  // What functions in C take: lent.
  T *get() const { return object_.get(); }

  // What it owned, which the caller frees.
  T *release() { return object_.release(); }

 private:
  struct Free {
    void operator()(T *object) const { Delete(object); }
  };
  std::unique_ptr<T, Free> object_;
};

// Why something has failed.
class Error : public std::exception {
 public:
  explicit Error(WASM_OWN pagefork_error_t *error) : error_(error, wasm_trap_delete) {
    wasm_message_t message;
    wasm_trap_message(error, &message);
    if (message.size > 0) text_.assign(message.data, message.size - 1);
    wasm_byte_vec_delete(&message);
  }

  const char *what() const noexcept override { return text_.c_str(); }

  // One of pagefork_error_kind_enum.
  pagefork_error_kind_t kind() const { return pagefork_error_kind(error_.get()); }

  // One of pagefork_trap_code_enum.
  pagefork_trap_code_t trap_code() const { return pagefork_error_trap_code(error_.get()); }

  // Whether a WASI program has ended itself; `status` is set then.
  bool exit_status(int32_t &status) const {
    return pagefork_error_exit_status(error_.get(), &status);
  }

  const pagefork_error_t *get() const { return error_.get(); }

 private:
  std::shared_ptr<pagefork_error_t> error_;
  std::string text_;
};

// Throws the error, unless it is null.
inline void check(WASM_OWN pagefork_error_t *error) {
  if (error) throw Error(error);
}

// Throws what a function has failed with that gives null.
inline void check(bool succeeded) {
  if (!succeeded) check(pagefork_last_error());
}

// What is being thrown, as an error for C. To be called where it was caught.
inline pagefork_error_t *thrown() {
  try {
    throw;
  } catch (const Error &error) {
    return wasm_trap_copy(error.get());
  } catch (const std::exception &exception) {
    return pagefork_error_new(exception.what());
  } catch (...) {
    return pagefork_error_new("an exception of a host function");
  }
}

// What a vector has, which is deleted.
inline std::string text_of(WASM_OWN wasm_byte_vec_t &bytes) {
  std::string text(bytes.data ? bytes.data : "", bytes.size);
  wasm_byte_vec_delete(&bytes);
  return text;
}

// The letter of a type in a signature of pagefork.h.
template <typename T> constexpr char letter_of() {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t> ||
                    std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t> ||
                    std::is_same_v<T, float> || std::is_same_v<T, double>,
                "guests have integers of 32 and 64 bits, float and double");
  if constexpr (std::is_same_v<T, float>) return 'f';
  if constexpr (std::is_same_v<T, double>) return 'F';
  return sizeof(T) == 4 ? 'i' : 'I';
}

template <typename Signature> struct Prototype;

// What a type of C++ functions means for guests.
template <typename R, typename... A> struct Prototype<R(A...)> {
  static std::string signature() {
    std::string text{letter_of<A>()..., ':'};
    if constexpr (!std::is_void_v<R>) text += letter_of<R>();
    return text;
  }

  static wasm_functype_t *type() {
    wasm_valtype_t *params[] = {valtype<A>()..., nullptr};
    wasm_valtype_vec_t in, out;
    wasm_valtype_vec_new(&in, sizeof...(A), params);
    if constexpr (std::is_void_v<R>) {
      wasm_valtype_vec_new_empty(&out);
    } else {
      wasm_valtype_t *result = valtype<R>();
      wasm_valtype_vec_new(&out, 1, &result);
    }
    return wasm_functype_new(&in, &out);
  }

 private:
  template <typename T> static wasm_valtype_t *valtype() {
    switch (letter_of<T>()) {
      case 'i': return wasm_valtype_new_i32();
      case 'I': return wasm_valtype_new_i64();
      case 'f': return wasm_valtype_new_f32();
      default: return wasm_valtype_new_f64();
    }
  }
};

using Config = Owned<wasm_config_t, wasm_config_delete>;

// What compiles modules, and what stores belong to.
class Engine : public Owned<wasm_engine_t, wasm_engine_delete> {
 public:
  explicit Engine(Config config = Config()) : Owned(make(config.release())) {}

 private:
  static wasm_engine_t *make(wasm_config_t *config) {
    wasm_engine_t *engine;
    check(pagefork_engine_new(config, &engine));
    return engine;
  }
};

// A compiled module, of no store.
class Module : public Owned<wasm_module_t, wasm_module_delete> {
 public:
  // Compiles a binary or text.
  Module(const Engine &engine, std::string_view bytes) : Owned(make(engine, bytes)) {}

 private:
  static wasm_module_t *make(const Engine &engine, std::string_view bytes) {
    wasm_module_t *module;
    check(pagefork_module_new(engine.get(), bytes.data(), bytes.size(), &module));
    return module;
  }
};

// What WASI programs are to see.
class Wasi : public Owned<pagefork_wasi_config_t, pagefork_wasi_config_delete> {
 public:
  Wasi() : Owned(pagefork_wasi_config_new()) { check(get() != nullptr); }

  Wasi &arg(const char *text) { return check(pagefork_wasi_config_arg(get(), text)), *this; }
  Wasi &env(const char *name, const char *value) {
    return check(pagefork_wasi_config_env(get(), name, value)), *this;
  }
  Wasi &directory(const char *host, const char *guest, bool read_only = true) {
    return check(pagefork_wasi_config_directory(get(), host, guest, read_only)), *this;
  }
  Wasi &session_directory(const char *host, const char *guest) {
    return check(pagefork_wasi_config_session_directory(get(), host, guest)), *this;
  }
  Wasi &stdin_bytes(std::string_view bytes) {
    return check(pagefork_wasi_config_stdin(get(), bytes.data(), bytes.size())), *this;
  }
  Wasi &capture_stdout(size_t size_max) {
    return pagefork_wasi_config_capture_stdout(get(), size_max), *this;
  }
};

// The value of a type of C++.
template <typename T> pagefork_val_t value_of(T value) {
  pagefork_val_t made;
  switch (letter_of<T>()) {
    case 'i': made.kind = WASM_I32, made.of.i32 = static_cast<int32_t>(value); break;
    case 'I': made.kind = WASM_I64, made.of.i64 = static_cast<int64_t>(value); break;
    case 'f': made.kind = WASM_F32, made.of.f32 = static_cast<float>(value); break;
    default: made.kind = WASM_F64, made.of.f64 = static_cast<double>(value);
  }
  return made;
}

// What a value of that kind is as a type of C++.
template <typename T> T from_value(const pagefork_val_t &value) {
  switch (letter_of<T>()) {
    case 'i': return static_cast<T>(value.of.i32);
    case 'I': return static_cast<T>(value.of.i64);
    case 'f': return static_cast<T>(value.of.f32);
    default: return static_cast<T>(value.of.f64);
  }
}

// What a call gives that may be suspended: nothing, or false, if it is.
template <typename R>
using Ended = std::conditional_t<std::is_void_v<R>, bool, std::optional<R>>;

template <typename R, typename F> Ended<R> ended(F call) {
  bool suspended;
  if constexpr (std::is_void_v<R>) {
    check(call(nullptr, 0, &suspended));
    return !suspended;
  } else {
    pagefork_val_t value;
    check(call(&value, 1, &suspended));
    return suspended ? std::nullopt : std::optional<R>(from_value<R>(value));
  }
}

class Snapshot;

// All instances that can refer to each other, with what they own.
class Store : public Owned<wasm_store_t, wasm_store_delete> {
 public:
  explicit Store(const Engine &engine) : Owned(wasm_store_new(engine.get())) {
    check(get() != nullptr);
  }
  explicit Store(WASM_OWN wasm_store_t *store) : Owned(store) {}

  void set_wasi(const Wasi &wasi) { check(pagefork_store_set_wasi(get(), wasi.get())); }
  void set_limits(const pagefork_limits_t &limits) {
    check(pagefork_store_set_limits(get(), &limits));
  }
  void set_timeout(uint64_t nanoseconds) { check(pagefork_store_set_timeout(get(), nanoseconds)); }

  // Brings all instances back to where they started.
  void reset(const Wasi *wasi = nullptr) {
    check(pagefork_store_reset(get(), wasi ? wasi->get() : nullptr));
  }

  // What WASI programs have written since it was last taken.
  std::string take_output(uint8_t stream = 1) {
    wasm_byte_vec_t bytes;
    check(pagefork_store_take_output(get(), stream, &bytes));
    return text_of(bytes);
  }

  // What the store is now.
  Snapshot snapshot() const;

  // The same, of a store whose guests hold references to objects of the host: `keep` says of each, a
  // `const wasm_ref_t *`, which `Foreign` takes its place.
  template <typename F> Snapshot snapshot_with(F keep) const;
  // What the store is now, with the files of a session, which are copied to a new directory.
  Snapshot snapshot_with_files(const char *place) const;

  // Brings the store to what it was.
  void reset_to(const Snapshot &snapshot, const Wasi *wasi = nullptr);

  // Stores that go on from where this one is.
  std::vector<Store> fork(size_t count, const pagefork_spawn_t &how = pagefork_spawn_t()) const {
    std::vector<wasm_store_t *> made(count);
    check(pagefork_store_fork(get(), &how, made.data(), count));
    std::vector<Store> stores;
    stores.reserve(count);
    for (wasm_store_t *store : made) stores.emplace_back(store);
    return stores;
  }

  // Goes on with the suspended guest, whose function gives an `R`; nothing if it is suspended again.
  template <typename R> Ended<R> resume() const {
    return ended<R>([this](pagefork_val_t *results, size_t count, bool *suspended) {
      return pagefork_store_resume(get(), results, count, suspended);
    });
  }

  // Gives the suspended guest up, if there is one.
  void abandon() const { check(pagefork_store_abandon(get())); }

  // One of pagefork_suspended_enum.
  uint8_t suspended_at() const { return pagefork_store_suspended_at(get()); }
};

// With this a call of a function of the host is completed, from any thread. If it goes without, the
// guest fails.
template <typename R>
class Completion : public Owned<pagefork_completion_t, pagefork_completion_delete> {
 public:
  using Owned::Owned;

  // Completes the call with a result.
  template <typename T = R> void finish(std::enable_if_t<!std::is_void_v<T>, T> result) {
    pagefork_val_t value = value_of<T>(result);
    pagefork_completion_finish(release(), &value, 1);
  }

  // Completes a call that has no result.
  template <typename T = R> std::enable_if_t<std::is_void_v<T>> finish() {
    pagefork_completion_finish(release(), nullptr, 0);
  }

  // Completes the call with an error.
  void fail(const char *text) { pagefork_completion_fail(release(), pagefork_error_new(text)); }

  // Whether anything waits for it.
  bool is_wanted() const { return pagefork_completion_is_wanted(get()); }
};

// A call that may wait. If it goes before it has ended, the guest is given up.
template <typename R> class Call : public Owned<pagefork_call_t, pagefork_call_delete> {
 public:
  using Owned::Owned;

  // Runs the guest until it ends or waits; whether it has ended.
  bool poll() { return pagefork_call_poll(get()); }

  // Polls, and sleeps in between, until the guest has ended or the time is up.
  bool wait(uint64_t nanoseconds = UINT64_MAX) { return pagefork_call_wait(get(), nanoseconds); }

  // The result of a call that has ended, once.
  R result() const {
    if constexpr (std::is_void_v<R>) {
      check(pagefork_call_results(get(), nullptr, 0));
    } else {
      pagefork_val_t value;
      check(pagefork_call_results(get(), &value, 1));
      return from_value<R>(value);
    }
  }
};

template <typename Signature> class TypedFunc;

// A function whose type was checked once: `TypedFunc<double(int32_t, int64_t)>`.
template <typename R, typename... A> class TypedFunc<R(A...)> {
 public:
  explicit TypedFunc(const wasm_func_t *func) : func_(make(func)) {}

  // Takes over what a function of pagefork.h has given, which is of this type.
  explicit TypedFunc(pagefork_typed_func_t *func) : func_(func) {}

  R operator()(A... args) const {
    using Call = R (*)(pagefork_typed_func_t *, A...);
    pagefork_typed_func_t *func = func_.get();
    if constexpr (std::is_void_v<R>) {
      reinterpret_cast<Call>(func->call)(func, args...);
      check(std::exchange(func->error, nullptr));
    } else {
      R result = reinterpret_cast<Call>(func->call)(func, args...);
      if (func->error) check(std::exchange(func->error, nullptr));
      return result;
    }
  }

 private:
  static pagefork_typed_func_t *make(const wasm_func_t *func) {
    pagefork_typed_func_t *typed;
    check(pagefork_func_typed(func, Prototype<R(A...)>::signature().c_str(), &typed));
    return typed;
  }

  Owned<pagefork_typed_func_t, pagefork_typed_func_delete> func_;
};

// Calls and frees what is told that it pays to poll.
inline void told(void *notify) { (*static_cast<std::function<void()> *>(notify))(); }

inline void free_notify(void *notify) { delete static_cast<std::function<void()> *>(notify); }

class Instance;

// An instantiation whose start function may wait. If it goes before it has ended, the function is given
// up.
class Instantiation : public Owned<pagefork_call_t, pagefork_call_delete> {
 public:
  using Owned::Owned;

  // Runs the guest until it ends or waits; whether it has ended.
  bool poll() { return pagefork_call_poll(get()); }

  // Polls, and sleeps in between, until the guest has ended or the time is up.
  bool wait(uint64_t nanoseconds = UINT64_MAX) { return pagefork_call_wait(get(), nanoseconds); }

  // The instance, once it is there.
  Instance instance() const;

  // The store and the instance, once they are there.
  std::pair<Store, Instance> spawned() const;
};

// Something that is exported.
using Extern = Owned<wasm_extern_t, wasm_extern_delete>;

// The bytes of a memory; they stay where they are.
struct Bytes {
  char *data;
  size_t size;
};

inline Bytes bytes_of(const Extern &external) {
  wasm_memory_t *memory = wasm_extern_as_memory(external.get());
  return {wasm_memory_data(memory), wasm_memory_data_size(memory)};
}

// A module in a store.
class Instance : public Owned<wasm_instance_t, wasm_instance_delete> {
 public:
  using Owned::Owned;

  Extern export_of(const char *name) const {
    wasm_extern_t *external;
    check(pagefork_instance_export(get(), name, &external));
    return Extern(external);
  }

  // The exported function of this type.
  template <typename Signature> TypedFunc<Signature> func(const char *name) const {
    std::string signature = Prototype<Signature>::signature();
    pagefork_typed_func_t *func;
    check(pagefork_instance_typed_func(get(), name, signature.c_str(), &func));
    return TypedFunc<Signature>(func);
  }

  // Calls an exported function that may wait; `notify`, unless it is empty, is called when it pays to
  // poll again, on any thread.
  template <typename Signature, typename... A>
  auto call_async(const char *name, A... args) const {
    return Asynchronously<Signature>::call(*this, name, nullptr, args...);
  }
  template <typename Signature, typename... A>
  auto call_async_notifying(std::function<void()> notify, const char *name, A... args) const {
    return Asynchronously<Signature>::call(*this, name, std::move(notify), args...);
  }

  // Calls an exported function that may be suspended: nothing if it is; see Store::resume.
  template <typename Signature, typename... A>
  auto call_suspendable(const char *name, A... args) const {
    return Suspendably<Signature>::call(*this, name, args...);
  }

  // The bytes of an exported memory.
  Bytes memory(const char *name = "memory") const { return bytes_of(export_of(name)); }

  // Runs a WASI program.
  void start() const { check(pagefork_wasi_start(get())); }

 private:
  template <typename Signature> struct Asynchronously;
  template <typename Signature> struct Suspendably;

  template <typename R, typename... A> struct Suspendably<R(A...)> {
    static Ended<R> call(const Instance &instance, const char *name, A... args) {
      Extern external = instance.export_of(name);
      const wasm_func_t *func = wasm_extern_as_func(external.get());
      // What is of another type is found here.
      TypedFunc<R(A...)> checked(func);
      // One more, as there are no arrays without elements.
      const pagefork_val_t values[] = {value_of(args)..., pagefork_val_t()};
      return ended<R>([&](pagefork_val_t *results, size_t count, bool *suspended) {
        return pagefork_func_call_suspendable(func, values, sizeof...(A), results, count,
                                              suspended);
      });
    }
  };

  template <typename R, typename... A> struct Asynchronously<R(A...)> {
    static Call<R> call(const Instance &instance, const char *name, std::function<void()> notify,
                        A... args) {
      Extern external = instance.export_of(name);
      const wasm_func_t *func = wasm_extern_as_func(external.get());
      // What is of another type is found here.
      TypedFunc<R(A...)> checked(func);
      // One more, as there are no arrays without elements.
      const pagefork_val_t values[] = {value_of(args)..., pagefork_val_t()};
      auto *env = notify ? new std::function<void()>(std::move(notify)) : nullptr;
      pagefork_call_t *call;
      check(pagefork_func_call_async(func, values, sizeof...(A), env ? told : nullptr, env,
                                     env ? free_notify : nullptr, &call));
      return Call<R>(call);
    }
  };
};

inline Instance Instantiation::instance() const {
  wasm_instance_t *instance;
  check(pagefork_call_instance(get(), &instance));
  return Instance(instance);
}

inline std::pair<Store, Instance> Instantiation::spawned() const {
  wasm_store_t *store;
  wasm_instance_t *instance;
  check(pagefork_call_spawned(get(), &store, &instance));
  return {Store(store), Instance(instance)};
}

// Who has called a host function.
class Caller {
 public:
  explicit Caller(const pagefork_caller_t *caller) : caller_(caller) {}

  wasm_store_t *store() const { return caller_->store; }

  // The bytes of a memory that the calling instance exports.
  Bytes memory(const char *name = "memory") const {
    wasm_extern_t *external;
    check(pagefork_caller_export(caller_, name, &external));
    return bytes_of(Extern(external));
  }

 private:
  const pagefork_caller_t *caller_;
};

// A module with what its imports are: instances of it are made without looking names up.
class InstancePre : public Owned<pagefork_instance_pre_t, pagefork_instance_pre_delete> {
 public:
  using Owned::Owned;

  // A fresh instance in a store of its own.
  std::pair<Store, Instance> spawn(const pagefork_spawn_t &how = pagefork_spawn_t()) const {
    wasm_store_t *store;
    wasm_instance_t *instance;
    check(pagefork_instance_pre_spawn(get(), &how, &store, &instance));
    return {Store(store), Instance(instance)};
  }

  // An export of the module that runs in a fresh instance each time: pre.fresh<int64_t(int32_t)>(module,
  // "run"). Each thread has its own.
  template <typename Signature>
  TypedFunc<Signature> fresh(const Module &module, const char *name,
                             const pagefork_spawn_t &how = pagefork_spawn_t(),
                             void *data = nullptr) const {
    pagefork_export_t *found;
    check(pagefork_module_export(module.get(), name, Prototype<Signature>::signature().c_str(), &found));
    Owned<pagefork_export_t, pagefork_export_delete> place(found);
    pagefork_typed_func_t *func;
    check(pagefork_instance_pre_typed_export(get(), &how, data, place.get(), &func));
    return TypedFunc<Signature>(func);
  }

  // The same, of a module whose start function may wait; `notify`, unless it is empty, is called when it
  // pays to poll again, on any thread.
  Instantiation spawn_async(const pagefork_spawn_t &how = pagefork_spawn_t(),
                            std::function<void()> notify = nullptr) const {
    auto *env = notify ? new std::function<void()>(std::move(notify)) : nullptr;
    pagefork_call_t *call;
    check(pagefork_instance_pre_spawn_async(get(), &how, env ? told : nullptr, env,
                                            env ? free_notify : nullptr, &call));
    return Instantiation(call);
  }
};

// Definitions by two names, with which modules' imports are satisfied.
class Linker : public Owned<pagefork_linker_t, pagefork_linker_delete> {
 public:
  explicit Linker(const Engine &engine) : Owned(make(engine)) {}

  // Defines the functions of WASI.
  Linker &wasi() { return check(pagefork_linker_wasi(get())), *this; }

  // Defines the functions by which guests give memory back.
  Linker &memory_discard() { return check(pagefork_linker_memory_discard(get())), *this; }

  // Defines a host function of this type, which takes a `Caller` before its arguments:
  // linker.func<double(int32_t)>("host", "half", [](Caller, int32_t a) { return a / 2.0; }).
  template <typename Signature, typename F>
  Linker &func(const char *module, const char *name, F function) {
    using Shim = Shim<F, Signature>;
    check(pagefork_linker_func_wrap(get(), module, name, Prototype<Signature>::signature().c_str(),
                                    reinterpret_cast<pagefork_function_t>(Shim::call),
                                    new F(std::move(function)), Shim::free));
    return *this;
  }

  // Defines a host function of this type that is begun, and completed later: it takes a `Caller`, its
  // arguments, and a `Completion` of its result.
  template <typename Signature, typename F>
  Linker &func_async(const char *module, const char *name, F function) {
    using Shim = AsyncShim<F, Signature>;
    wasm_functype_t *type = Prototype<Signature>::type();
    auto *error = pagefork_linker_func_async(get(), module, name, type, Shim::begin,
                                             new F(std::move(function)), Shim::free);
    wasm_functype_delete(type);
    return check(error), *this;
  }

  Instance instantiate(const Store &store, const Module &module) const {
    wasm_instance_t *instance;
    check(pagefork_linker_instantiate(get(), store.get(), module.get(), &instance));
    return Instance(instance);
  }

  // As `instantiate`, of a module whose start function may wait; `notify`, unless it is empty, is called
  // when it pays to poll again, on any thread.
  Instantiation instantiate_async(const Store &store, const Module &module,
                                  std::function<void()> notify = nullptr) const {
    auto *env = notify ? new std::function<void()>(std::move(notify)) : nullptr;
    pagefork_call_t *call;
    check(pagefork_linker_instantiate_async(get(), store.get(), module.get(), env ? told : nullptr,
                                            env, env ? free_notify : nullptr, &call));
    return Instantiation(call);
  }

  InstancePre instantiate_pre(const Module &module) const {
    pagefork_instance_pre_t *pre;
    check(pagefork_linker_instantiate_pre(get(), module.get(), &pre));
    return InstancePre(pre);
  }

 private:
  template <typename F, typename Signature> struct Shim;

  // What the guest calls: no exception leaves it.
  template <typename F, typename R, typename... A> struct Shim<F, R(A...)> {
    static R call(const pagefork_caller_t *caller, A... args) {
      try {
        return (*static_cast<F *>(caller->env))(Caller(caller), args...);
      } catch (const Error &error) {
        pagefork_raise(caller, wasm_trap_copy(error.get()));
      } catch (const std::exception &exception) {
        raise(caller, exception.what());
      } catch (...) {
        raise(caller, "an exception of a host function");
      }
      return R();
    }

    static void free(void *function) { delete static_cast<F *>(function); }

    static void raise(const pagefork_caller_t *caller, const char *text) {
      wasm_message_t message;
      wasm_name_new_from_string_nt(&message, text);
      pagefork_raise(caller, wasm_trap_new(caller->store, &message));
      wasm_byte_vec_delete(&message);
    }
  };

  template <typename F, typename Signature> struct AsyncShim;

  // What the guest calls of a function that is begun: no exception leaves it.
  template <typename F, typename R, typename... A> struct AsyncShim<F, R(A...)> {
    static void begin(const pagefork_caller_t *caller, const pagefork_val_t *args, size_t,
                      pagefork_completion_t *completion) {
      begin_with(caller, args, Completion<R>(completion), std::index_sequence_for<A...>());
    }

    template <size_t... I>
    static void begin_with(const pagefork_caller_t *caller, const pagefork_val_t *args,
                           Completion<R> completion, std::index_sequence<I...>) {
      (void)args;
      try {
        (*static_cast<F *>(caller->env))(Caller(caller), from_value<A>(args[I])...,
                                         std::move(completion));
      } catch (...) {
        pagefork_raise(caller, thrown());
      }
    }

    static void free(void *function) { delete static_cast<F *>(function); }
  };

  static pagefork_linker_t *make(const Engine &engine) {
    pagefork_linker_t *linker;
    check(pagefork_linker_new(engine.get(), &linker));
    return linker;
  }
};

// Something of the embedder's that guests of any store can hold: a `T`, which goes with it.
class Foreign : public Owned<wasm_foreign_t, wasm_foreign_delete> {
 public:
  template <typename T>
  explicit Foreign(std::unique_ptr<T> value)
      : Owned(pagefork_foreign_new(value.release(), [](void *own) { delete static_cast<T *>(own); })) {
    check(get() != nullptr);
  }

  // The `T` of a reference to a `Foreign`.
  template <typename T> static T *of(const wasm_ref_t *reference) {
    return static_cast<T *>(wasm_ref_get_host_info(reference));
  }
};

// What stands for an image.
using Image = pagefork_image_hash_t;

// A directory of images.
class Images : public Owned<pagefork_image_store_t, pagefork_image_store_delete> {
 public:
  explicit Images(const char *directory) : Owned(make(directory)) {}

  Image find(const char *text) const {
    Image image;
    check(pagefork_image_store_find(get(), text, &image));
    return image;
  }
  void set_name(const char *name, const Image &image) const {
    check(pagefork_image_store_set_name(get(), name, &image));
  }
  void remove_name(const char *name) const {
    check(pagefork_image_store_remove_name(get(), name));
  }
  void collect() const { check(pagefork_image_store_collect(get())); }
  void export_to(const char *path, const Image &image) const {
    check(pagefork_image_store_export(get(), &image, path));
  }
  Image import_from(const char *path) const {
    Image image;
    check(pagefork_image_store_import(get(), path, &image));
    return image;
  }

 private:
  static pagefork_image_store_t *make(const char *directory) {
    pagefork_image_store_t *images;
    check(pagefork_image_store_open(directory, &images));
    return images;
  }
};

// How a snapshot is saved: all of it is optional.
struct Saving {
  // Bytes of the embedder's.
  std::string_view state;
  // Has those pages alone saved in which it differs from this one.
  const Snapshot *delta_of = nullptr;
  // Keys that sign it.
  std::vector<pagefork_secret_key_t> signers;
  // Functions of a store's host that no linker has defined, with names.
  std::vector<pagefork_named_func_t> funcs;
  // What is kept of an object that guests hold.
  std::function<std::string(const wasm_ref_t *)> reference;
};

// How a snapshot is loaded: all of it is optional.
struct Loading {
  // Modules that are there already.
  std::vector<const wasm_module_t *> modules;
  // Keys whose owners may do all that this process can.
  std::vector<pagefork_public_key_t> trusted;
  // What is made of what was kept of an object.
  std::function<Foreign(std::string_view)> reference;
  // A store in whose place go on those that are spawned.
  const Store *continues = nullptr;
  // A new directory, to which the files of its session are copied.
  const char *place = nullptr;
};

// What a store was.
class Snapshot : public Owned<pagefork_snapshot_t, pagefork_snapshot_delete> {
 public:
  using Owned::Owned;

  // A snapshot that was saved.
  static Snapshot load(const Linker &linker, const Images &images, const Image &image,
                       const Loading &loading = Loading()) {
    pagefork_load_t how = {};
    how.modules = loading.modules.data();
    how.module_count = loading.modules.size();
    how.trusted = loading.trusted.data();
    how.trusted_count = loading.trusted.size();
    how.continues = loading.continues ? loading.continues->get() : nullptr;
    how.load_reference = loading.reference ? load_reference : nullptr;
    how.env = const_cast<std::function<Foreign(std::string_view)> *>(&loading.reference);
    pagefork_snapshot_t *snapshot;
    check(loading.place ? pagefork_snapshot_load_with_files(linker.get(), images.get(), &image,
                                                            &how, loading.place, &snapshot)
                        : pagefork_snapshot_load(linker.get(), images.get(), &image, &how,
                                                 &snapshot));
    return Snapshot(snapshot);
  }

  // Writes it to a store of images.
  Image save(const Images &images, const Saving &saving = Saving()) const {
    pagefork_save_t how = {};
    how.state = saving.state.data();
    how.state_size = saving.state.size();
    how.delta_of = saving.delta_of ? saving.delta_of->get() : nullptr;
    how.signers = saving.signers.data();
    how.signer_count = saving.signers.size();
    how.funcs = saving.funcs.data();
    how.func_count = saving.funcs.size();
    how.save_reference = saving.reference ? save_reference : nullptr;
    how.env = const_cast<std::function<std::string(const wasm_ref_t *)> *>(&saving.reference);
    Image image;
    check(pagefork_snapshot_save(get(), images.get(), &how, &image));
    return image;
  }

  // What spawns stores that go on from it.
  InstancePre instance_pre() const {
    pagefork_instance_pre_t *pre;
    check(pagefork_snapshot_instance_pre(get(), &pre));
    return InstancePre(pre);
  }

  // The bytes that were saved with it.
  std::string state() const {
    wasm_byte_vec_t bytes;
    check(pagefork_snapshot_state(get(), &bytes));
    return text_of(bytes);
  }

 private:
  static pagefork_error_t *save_reference(void *hook, const wasm_ref_t *object,
                                          wasm_byte_vec_t *out) {
    try {
      auto &save = *static_cast<std::function<std::string(const wasm_ref_t *)> *>(hook);
      std::string kept = save(object);
      wasm_byte_vec_new(out, kept.size(), kept.data());
      return nullptr;
    } catch (...) {
      return thrown();
    }
  }

  static pagefork_error_t *load_reference(void *hook, const void *bytes, size_t size,
                                          wasm_ref_t **out) {
    try {
      auto &load = *static_cast<std::function<Foreign(std::string_view)> *>(hook);
      std::string_view kept(static_cast<const char *>(bytes), size);
      *out = wasm_foreign_as_ref(load(kept).release());
      return nullptr;
    } catch (...) {
      return thrown();
    }
  }
};

// The public key of a secret one.
inline pagefork_public_key_t public_key(const pagefork_secret_key_t &key) {
  pagefork_public_key_t found;
  check(pagefork_secret_key_public(&key, &found));
  return found;
}

inline Snapshot Store::snapshot() const {
  pagefork_snapshot_t *snapshot;
  check(pagefork_store_snapshot(get(), &snapshot));
  return Snapshot(snapshot);
}

inline Snapshot Store::snapshot_with_files(const char *place) const {
  pagefork_snapshot_t *snapshot;
  check(pagefork_store_snapshot_with_files(get(), place, nullptr, nullptr, &snapshot));
  return Snapshot(snapshot);
}

template <typename F> Snapshot Store::snapshot_with(F keep) const {
  pagefork_keep_reference_t hook = [](void *own, const wasm_ref_t *object,
                                      wasm_ref_t **out) -> pagefork_error_t * {
    try {
      Foreign foreign = (*static_cast<F *>(own))(object);
      *out = wasm_foreign_as_ref(foreign.release());
      return nullptr;
    } catch (...) {
      return thrown();
    }
  };
  pagefork_snapshot_t *snapshot;
  check(pagefork_store_snapshot_with(get(), hook, &keep, &snapshot));
  return Snapshot(snapshot);
}

inline void Store::reset_to(const Snapshot &snapshot, const Wasi *wasi) {
  check(pagefork_store_reset_to(get(), snapshot.get(), wasi ? wasi->get() : nullptr));
}

}  // namespace pagefork

#endif  // PAGEFORK_HH
