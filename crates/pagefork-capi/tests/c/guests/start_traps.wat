;; A start function that traps.
(module (func $start unreachable) (start $start))
