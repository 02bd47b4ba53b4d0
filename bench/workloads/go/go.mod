module masu/random-access

go 1.19
