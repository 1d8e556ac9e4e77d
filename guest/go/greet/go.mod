module greet

go 1.21
