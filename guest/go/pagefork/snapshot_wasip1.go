package pagefork

//go:wasmimport pagefork snapshot
func snapshot() uint32
