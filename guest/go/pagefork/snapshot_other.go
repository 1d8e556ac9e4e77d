//go:build !wasip1

package pagefork

func snapshot() uint32 { return 0 }
