/*
 * pagefork_waiting.h: functions of the host that take their time, and guests that are suspended
 * meanwhile, or whenever they are asked to be. It is a part of pagefork.h, which includes it.
 */

#ifndef PAGEFORK_WAITING_H
#define PAGEFORK_WAITING_H

#include "pagefork.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------- */
/* Functions that wait */

/*
 * A function of the host can be begun and completed later. Meanwhile the guest that has called it is
 * suspended: it takes no thread. Guests that may wait are called by pagefork_func_call_async, and
 * the call is polled, each time that it can go on. That fits any event loop: `notify` writes to an
 * eventfd, posts a message, or wakes a thread, and the loop polls then.
 *
 *     pagefork_func_call_async(run, NULL, 0, notify, loop, NULL, &call);
 *     while (!pagefork_call_poll(call)) wait_for_notification(loop);
 *     error = pagefork_call_results(call, results, 1);
 *     pagefork_call_delete(call);
 *
 * From when a call is made until it has ended or is deleted, its store is the call's own: other
 * functions that need it fail, but for those that are called in callbacks. Pointers to memories stay
 * good, and may be used by who completes the function. For modules whose start function may wait there
 * are pagefork_linker_instantiate_async and pagefork_instance_pre_spawn_async.
 */

/* With this a call of a function of the host is completed, from any thread: owned by who has begun
 * it, who gives it away by exactly one of the functions that own it. */
typedef struct pagefork_completion_t pagefork_completion_t;

/* A function with values that is begun: it completes the call before it returns, or later. Arguments
 * and caller are lent until it returns. */
typedef void (*pagefork_async_callback_t)(const pagefork_caller_t *, const pagefork_val_t *args,
                                          size_t arg_count, WASM_OWN pagefork_completion_t *);

/* As pagefork_func_new, of a function that is begun. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_func_new_async(
    wasm_store_t *, const wasm_functype_t *, pagefork_async_callback_t, void *env,
    void (*finalizer)(void *), WASM_OWN wasm_func_t **out);

/* As pagefork_linker_func, of a function that is begun. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_func_async(
    pagefork_linker_t *, const char *module, const char *name, const wasm_functype_t *,
    pagefork_async_callback_t, void *env, void (*finalizer)(void *));

/* Completes a call with its results, which are taken over. If they are not of the function's type,
 * the guest fails. A result that is a reference is given on a thread that may use its store. */
WASM_API_EXTERN void pagefork_completion_finish(
    WASM_OWN pagefork_completion_t *, WASM_OWN const pagefork_val_t *results, size_t count);

/* Completes a call with an error, or an exception, which the guest may catch. On another thread the
 * error is one that pagefork_error_new has made. */
WASM_API_EXTERN void pagefork_completion_fail(WASM_OWN pagefork_completion_t *,
                                              WASM_OWN pagefork_error_t *);

/* Gives a call up: the guest fails. Null is nothing to give up. */
WASM_API_EXTERN void pagefork_completion_delete(WASM_OWN pagefork_completion_t *);

/* Whether anything waits for it: a time that is up, an interrupt, and deleting the guest's call end
 * the wait. To complete it then does nothing. False of null. */
WASM_API_EXTERN bool pagefork_completion_is_wanted(const pagefork_completion_t *);

/* Has this called once, when the wait ends without being completed, at once if it has. It may be
 * called on any thread that uses the store or the completion; it must use neither. */
WASM_API_EXTERN void pagefork_completion_on_cancel(pagefork_completion_t *, void (*cancel)(void *),
                                                   void *env);

/* A call that may wait; owned. It is used by one thread at a time, as its store. */
typedef struct pagefork_call_t pagefork_call_t;

/*
 * Calls a function that may wait; it runs when the call is polled. `notify`, which may be null, is
 * called with `env` when it pays to poll again, at most once between two polls: from the thread that
 * completes a function, that interrupts, or of a clock. It must not use the call. The finalizer,
 * which may be null, is called once with `env`, on any thread, when `notify` never will be again.
 * Arguments are copied. An error if a guest of the store runs or waits.
 */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_func_call_async(
    const wasm_func_t *, const pagefork_val_t *args, size_t arg_count, void (*notify)(void *),
    void *env, void (*finalizer)(void *), WASM_OWN pagefork_call_t **out);

/* Runs the guest until it ends or waits; whether it has ended. False also on failure. */
WASM_API_EXTERN bool pagefork_call_poll(pagefork_call_t *);

/* Polls, and sleeps in between, until the guest has ended, or so many nanoseconds are over;
 * UINT64_MAX for ever. Whether it has ended; false also on failure. */
WASM_API_EXTERN bool pagefork_call_wait(pagefork_call_t *, uint64_t nanoseconds);

/* The results of a call that has ended, once, or what ended it. An error if it has not ended, or is
 * one that makes an instance, or there are more or fewer results, which are as they were then. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_call_results(
    const pagefork_call_t *, WASM_OWN pagefork_val_t *results, size_t count);

/* The instance that a call of pagefork_linker_instantiate_async or pagefork_instance_pre_spawn_async
 * has made, once, or what ended it. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_call_instance(const pagefork_call_t *,
                                                                  WASM_OWN wasm_instance_t **out);

/* As pagefork_call_instance, with the instance's store. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_call_spawned(const pagefork_call_t *,
                                                                 WASM_OWN wasm_store_t **store,
                                                                 WASM_OWN wasm_instance_t **out);

/* Deletes the call, at any time. A guest that has not ended is given up: its memory stays as it is,
 * and the store can be used again. Null is nothing to delete. */
WASM_API_EXTERN void pagefork_call_delete(WASM_OWN pagefork_call_t *);

/* As pagefork_linker_instantiate, of a module whose start function may wait: as
 * pagefork_func_call_async, but its outcome is had by pagefork_call_instance. If the call is deleted
 * while the function waits, the instance stays in the store, as it does if the function traps. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_linker_instantiate_async(
    const pagefork_linker_t *, wasm_store_t *, const wasm_module_t *, void (*notify)(void *),
    void *env, void (*finalizer)(void *), WASM_OWN pagefork_call_t **out);

/* As pagefork_instance_pre_spawn, of a module whose start function may wait: as
 * pagefork_func_call_async, but its outcome is had by pagefork_call_spawned. If the call is deleted
 * before it has ended, or fails, there is no store any more. What `how` leads to is used before this
 * returns. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_instance_pre_spawn_async(
    const pagefork_instance_pre_t *, const pagefork_spawn_t *how, void (*notify)(void *), void *env,
    void (*finalizer)(void *), WASM_OWN pagefork_call_t **out);

/* Has guests that were called by pagefork_func_call_async let others run after this time, as if they
 * waited, at a function entry or loop iteration; 0 for never. An error while a guest runs or waits,
 * or if guests cannot be interrupted. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_set_yield_interval(wasm_store_t *,
                                                                             uint64_t nanoseconds);

/* ------------------------------------------------------------------------------------------- */
/* Calls that end suspended */

/* As pagefork_func_call, but the guest may be suspended: because pagefork_interrupt_suspend or a
 * function of the host asks for it. Then `suspended`, which is not null, is set, and there are no
 * results yet. The store can be resumed, also on another thread, captured, forked, or deleted. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_func_call_suspendable(
    const wasm_func_t *, const pagefork_val_t *args, size_t arg_count,
    WASM_OWN pagefork_val_t *results, size_t result_count, bool *suspended);

/* For a callback that has done nothing yet: what it fails with to be called later, when the guest is
 * resumed; one with its own arguments gives it to pagefork_raise. Else the error that the guest
 * cannot be suspended. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_caller_suspend_before(const pagefork_caller_t *);

/* Has the guest suspended when the function that runs has returned. An error if it cannot be. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_caller_suspend_after(const pagefork_caller_t *);

/* Whether the guest that has called can be suspended. False also on failure. */
WASM_API_EXTERN bool pagefork_caller_can_suspend(const pagefork_caller_t *);

/* Where a guest is suspended. */
enum pagefork_suspended_enum {
  /* There is none that is. */
  PAGEFORK_SUSPENDED_NOWHERE,
  /* Before a call of a function of the host. */
  PAGEFORK_SUSPENDED_BEFORE_HOST_CALL,
  PAGEFORK_SUSPENDED_AFTER_HOST_CALL,
  /* At a function entry or loop iteration. */
  PAGEFORK_SUSPENDED_AT_INTERRUPTION
};

/* One of pagefork_suspended_enum; PAGEFORK_SUSPENDED_NOWHERE also on failure. */
WASM_API_EXTERN uint8_t pagefork_store_suspended_at(const wasm_store_t *);

/* Which function of the host the guest is suspended before, and its arguments, as many as it takes.
 * An error if it is not, or takes more or fewer: `args` are as they were then. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_suspended_call(
    const wasm_store_t *, WASM_OWN wasm_func_t **out, WASM_OWN pagefork_val_t *args,
    size_t arg_count);

/* Goes on with the suspended guest. The results are those of the function that was called once; it
 * must be known how many these are. An error if no guest is suspended, or of what ends it: the
 * results are as they were, and `suspended` false. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_resume(
    wasm_store_t *, WASM_OWN pagefork_val_t *results, size_t result_count, bool *suspended);

/* As pagefork_store_resume, of a guest that is suspended before a call: with these values instead of
 * the call, which are copied, or with an error that it fails with, unless that is null. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_resume_with(
    wasm_store_t *, const pagefork_val_t *values, size_t value_count, WASM_OWN pagefork_error_t
    *error, WASM_OWN pagefork_val_t *results, size_t result_count, bool *suspended);

/* Gives the suspended guest up, if there is one. Its memory stays as it is. An error while a guest
 * runs. */
WASM_API_EXTERN WASM_OWN pagefork_error_t *pagefork_store_abandon(wasm_store_t *);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PAGEFORK_WAITING_H */
