//! How the thunks are written that differ in little.

/// Clears what a call may change, so that a guest finds nothing of the host in
/// registers: at an interruption point all of them become bytes of its pages.
macro_rules! clear_scratch_registers {
    () => {
        concat!("xor edx, edx\n", "xorps xmm0, xmm0\n", clear_scratch_registers_without_results!())
    };
}

/// Clears what a call may change, but for rdx and xmm0, and for rcx and rdi.
macro_rules! clear_scratch_registers_without_results {
    () => {
        "xor eax, eax
         xor esi, esi
         xor r8d, r8d
         xor r9d, r9d
         xor r10d, r10d
         xor r11d, r11d
         xorps xmm1, xmm1
         xorps xmm2, xmm2
         xorps xmm3, xmm3
         xorps xmm4, xmm4
         xorps xmm5, xmm5
         xorps xmm6, xmm6
         xorps xmm7, xmm7
         xorps xmm8, xmm8
         xorps xmm9, xmm9
         xorps xmm10, xmm10
         xorps xmm11, xmm11
         xorps xmm12, xmm12
         xorps xmm13, xmm13
         xorps xmm14, xmm14
         xorps xmm15, xmm15"
    };
}

/// Where the entry frame and what it saves are, to an unwinder, once the stack pointer is the
/// host's.
macro_rules! cfa_on_host_stack {
    () => {
        ".cfi_def_cfa rsp, 96
         .cfi_offset rbp, -16
         .cfi_offset rbx, -24
         .cfi_offset r12, -32
         .cfi_offset r13, -40
         .cfi_offset r14, -48
         .cfi_offset r15, -56"
    };
}

/// Lets guests call a host function with arguments in registers, and its result in one. The
/// record is the first argument. `$clear` clears registers, but not the result.
macro_rules! direct_thunk {
    ($name:literal, $clear:expr) => {
        concat!(
            ".globl ",
            $name,
            "\n.hidden ",
            $name,
            "\n.type ",
            $name,
            ",@function\n.p2align 6\n",
            $name,
            ":\n",
            ".cfi_startproc\n",
            "push rbp\n",
            ".cfi_def_cfa_offset 16\n",
            ".cfi_offset rbp, -16\n",
            "mov rbp, rsp\n",
            ".cfi_def_cfa_register rbp\n",
            "mov rax, [rdi + {RECORD_ACTIVATION}]\n",
            "mov [rax + {GUEST_SP}], rsp\n",
            "mov [rax + {GUEST_BASE}], r15\n",
            "mov rsp, [rax + {HOST_SP}]\n",
            ".cfi_remember_state\n",
            cfa_on_host_stack!(),
            "\ncall qword ptr [rdi + {RECORD_SHIM}]\n",
            "test eax, eax\n",
            "jne .Lpagefork_direct_otherwise\n",
            ".cfi_restore_state\n",
            $clear,
            "\nmov rsp, rbp\n",
            "pop rbp\n",
            ".cfi_def_cfa rsp, 8\n",
            "ret\n",
            ".cfi_endproc\n",
            ".size ",
            $name,
            ", . - ",
            $name,
        )
    };
}

/// Lets guests call a function of C's. The record of the import is the first argument, in whose place the
/// function gets its caller. What is due is looked at here, since nothing of Rust's runs in between.
///
/// `own` arguments are in registers, as the result is: `$result` moves it, or clears what is left of its register.
///
/// `cells` are on the host's stack, `$size` bytes, which the frame is `$frame` bytes above. `$arguments` puts
/// arguments there, and takes the bits of each that count from r11; `$result` takes the result from there. What
/// such a function returns is an error, or null.
macro_rules! foreign_thunk {
    ($name:literal, $kind:literal, own: $result:literal) => {
        foreign_thunk!(
            $name,
            $kind,
            stack: "0", "96",
            before: "",
            returned: "",
            result: $result,
            due: "mov rsi, rax
                  call {after_foreign_call}
                  test eax, eax
                  jne .Lpagefork_direct_otherwise
                  mov rax, rdx
                  movq xmm0, rdx
                  jmp 3b"
        )
    };
    ($name:literal, $kind:literal, cells: $size:literal, $frame:literal, $arguments:expr, $result:literal) => {
        foreign_thunk!(
            $name,
            $kind,
            stack: $size, $frame,
            before: concat!(
                "mov r11, [rdi + {CALLER_BITS}]\n",
                "sub rsp, ", $size, "\n",
                ".cfi_def_cfa_offset ", $frame, "\n",
                $arguments,
                "\nmov rsi, rsp",
            ),
            returned: "test rax, rax
                       jne 2f",
            result: $result,
            due: concat!(
                "mov rsi, rsp
                 mov rcx, rax
                 call {after_call_on_cells}
                 test eax, eax
                 je 3b
                 add rsp, ", $size, "
                 .cfi_def_cfa_offset 96
                 jmp .Lpagefork_direct_otherwise"
            )
        )
    };
    (
        $name:literal, $kind:literal, stack: $size:literal, $frame:literal, before: $before:expr,
        returned: $returned:literal, result: $result:literal, due: $due:expr
    ) => {
        concat!(
            ".globl ",
            $name,
            "\n.hidden ",
            $name,
            "\n.type ",
            $name,
            ",@function\n.p2align 6\n",
            $name,
            ":\n",
            ".cfi_startproc\n",
            // Relative to the program counter, in 4 bytes.
            ".cfi_personality 0x1b, {end_unwinding}\n",
            "push rbp\n",
            ".cfi_def_cfa_offset 16\n",
            ".cfi_offset rbp, -16\n",
            "mov rbp, rsp\n",
            ".cfi_def_cfa_register rbp\n",
            "mov rax, [rdi + {RECORD_ACTIVATION}]\n",
            "mov r10, [rdi + {RECORD_SHIM}]\n",
            "mov rdi, [rdi + {RECORD_CLOSURE}]\n",
            "mov [rax + {GUEST_SP}], rsp\n",
            "mov [rax + {GUEST_BASE}], r15\n",
            "mov rsp, [rax + {HOST_SP}]\n",
            ".cfi_remember_state\n",
            cfa_on_host_stack!(),
            "\n",
            $before,
            "\ncall r10\n",
            $returned,
            // The entry frame leads to the activation, which C's function does not keep in a register.
            "\nmov rcx, [rsp + ",
            $size,
            "]\n",
            "mov rcx, [rcx + {DUE}]\n",
            "test dword ptr [rcx], {AFTER_HOST_CALLS}\n",
            "jne 2f\n",
            ".cfi_restore_state\n",
            "3:\n",
            $result,
            "\nmov rsp, rbp\n",
            "pop rbp\n",
            ".cfi_remember_state\n",
            ".cfi_def_cfa rsp, 8\n",
            "ret\n",
            ".cfi_restore_state\n",
            "2:\n",
            cfa_on_host_stack!(),
            "\n.cfi_def_cfa_offset ",
            $frame,
            "\nmov rdi, [rsp + ",
            $size,
            "]\n",
            "mov edx, {",
            $kind,
            "}\n",
            $due,
            "\n.cfi_endproc\n",
            ".size ",
            $name,
            ", . - ",
            $name,
        )
    };
}

/// Puts the only argument into a cell.
macro_rules! argument_to_cell {
    () => {
        "and rsi, [r11]
         movq xmm0, rsi
         movaps [rsp], xmm0"
    };
}

/// Puts as many arguments as there may be into cells: to look at how many there are costs as much as to write
/// them. Each cell is written by one instruction, as a processor does one or two writes at a time.
macro_rules! arguments_to_cells {
    () => {
        concat!(
            argument_to_cell!(),
            "
             and rdx, [r11 + 8]
             movq xmm1, rdx
             movaps [rsp + 16], xmm1
             and rcx, [r11 + 16]
             movq xmm2, rcx
             movaps [rsp + 32], xmm2
             and r8, [r11 + 24]
             movq xmm3, r8
             movaps [rsp + 48], xmm3
             and r9, [r11 + 32]
             movq xmm4, r9
             movaps [rsp + 64], xmm4"
        )
    };
}

/// Lets guests call a function of the C library that keeps nothing: on the host's stack,
/// whose depth is the library's affair, and with its arguments in registers. What it
/// leaves there are host addresses, which are cleared; vectors hold the guest's own bytes.
macro_rules! library_thunk {
    ($name:literal, $function:literal) => {
        library_thunk!($name, $function, "")
    };
    ($name:literal, $function:literal, $arguments:literal) => {
        concat!(
            ".globl ",
            $name,
            "\n",
            ".hidden ",
            $name,
            "\n",
            ".type ",
            $name,
            ",@function\n",
            $name,
            ":\n",
            ".cfi_startproc\n",
            "push rbp\n",
            ".cfi_def_cfa_offset 16\n",
            ".cfi_offset rbp, -16\n",
            "mov rbp, rsp\n",
            ".cfi_def_cfa_register rbp\n",
            "movsxd rax, dword ptr [r15 + {LINK_OFFSET}]\n",
            "mov rax, [r15 + rax + {ACTIVATION}]\n",
            $arguments,
            "mov rsp, [rax + {HOST_SP}]\n",
            "call {",
            $function,
            "}\n",
            "mov rsp, rbp\n",
            "pop rbp\n",
            ".cfi_def_cfa rsp, 8\n",
            "xor eax, eax\n",
            "xor ecx, ecx\n",
            "xor edx, edx\n",
            "xor esi, esi\n",
            "xor edi, edi\n",
            "xor r8d, r8d\n",
            "xor r9d, r9d\n",
            "xor r10d, r10d\n",
            "xor r11d, r11d\n",
            "ret\n",
            ".cfi_endproc\n",
            ".size ",
            $name,
            ", . - ",
            $name,
        )
    };
}
