;; Nothing but functions without effects.
(module (func (export "f")) (func (export "g")))
