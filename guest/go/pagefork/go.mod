module pagefork

go 1.21
