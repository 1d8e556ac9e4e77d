module digest

go 1.21
