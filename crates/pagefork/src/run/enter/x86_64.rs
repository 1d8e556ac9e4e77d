//! Every instruction that runs between host and guest.
//!
//! Register roles while a guest runs: r15 is the base of the running instance;
//! rbp links the frames, down to the zero that `enter` starts with; rsp is in
//! the stack zone. Everything else is the guest's own. Given the base, the
//! activation is two loads away: `[base - 8]` is the offset of the link zone,
//! whose first word is the address of the activation.
//!
//! An entry leaves this on the host stack, and `HOST_SP` points at it until the
//! entry is left. Host code that the guest calls runs right below.
//!
//! ```text
//!   HOST_SP + 88   return address into the host
//!   HOST_SP + 80   rbp                              \
//!   HOST_SP + 72   rbx                               | what System V makes a
//!   HOST_SP + 64   r12                               | callee save
//!   HOST_SP + 56   r13                               |
//!   HOST_SP + 48   r14                               |
//!   HOST_SP + 40   r15                              /
//!   HOST_SP + 32   unused, keeps the stack aligned
//!   HOST_SP + 24   GUEST_BASE                       \
//!   HOST_SP + 16   GUEST_SP                          | of the activation around
//!   HOST_SP +  8   HOST_SP                          /  this one, zero if none
//!   HOST_SP +  0   address of the activation
//! ```
//!
//! To an unwinder all code that runs on the host stack while a guest is entered
//! looks as if `enter` had called it: so it crosses from a host function to the
//! embedder, and leaves the guest's frames out.

use std::arch::{asm, global_asm};
use std::mem::offset_of;

use pagefork_layout::link;
use pagefork_layout::state::{self, save};
use pagefork_layout::trap::TrapCode;

use crate::store::activation::Activation;
use crate::store::foreign::ForeignCaller;
use crate::store::frame::Landing;
use crate::store::interrupt::Due;

use super::{CATCH, CONTINUE, FINISHED, LEFT, SUSPEND, SUSPENDED, direct};

// What the frame chain of a guest suspended at an interruption point begins
// with: the frame pointer, then below it all other registers.
//
//   rbp +   8   return address into the guest
//   rbp +   0   rbp of the guest
//   rbp -   8   unused, keeps the block aligned
//   rbp - 112   rax rcx rdx rbx rsi rdi r8 .. r14, 8 bytes each
//   rbp - 368   xmm0 .. xmm15, 16 bytes each: guest code uses no more of them
pub(crate) const INTERRUPT_BLOCK: u32 = 368;

/// Where the innermost entry frame is, while a guest runs, to an unwinder: CFA =
/// `*(*(r15 + sign_extend32(*(r15 - 8))) + HOST_SP) + 96`. In bytes: breg15 -8,
/// deref_size 4, const1u 32, shl, const1u 32, shra, breg15 0, plus, deref, deref,
/// plus_uconst 96.
macro_rules! cfa_through_base {
    () => {
        ".cfi_escape 0x0f, 17, 0x7f, 0x78, 0x94, 4, 0x08, 32, 0x24, 0x08, 32, 0x26, 0x7f, 0, 0x22, \
         0x06, 0x06, 0x23, 96"
    };
}

global_asm!(
    ".pushsection .text.pagefork_thunks,\"ax\",@progbits",
    ".p2align 4",
    ".globl pagefork_thunks_start",
    ".hidden pagefork_thunks_start",
    "pagefork_thunks_start:",

    // -- enter -------------------------------------------------------------
    // Calls a function of the guest.
    //   rdi  the activation          rcx  the entry stub to call
    //   rsi  base of the instance    r8   what the entry stub calls
    //   rdx  guest stack pointer, aligned to 16
    // Returns how the guest was left in eax.
    ".globl pagefork_enter",
    ".hidden pagefork_enter",
    ".type pagefork_enter,@function",
    "pagefork_enter:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "push rbx",
    ".cfi_def_cfa_offset 24",
    ".cfi_offset rbx, -24",
    "push r12",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset r12, -32",
    "push r13",
    ".cfi_def_cfa_offset 40",
    ".cfi_offset r13, -40",
    "push r14",
    ".cfi_def_cfa_offset 48",
    ".cfi_offset r14, -48",
    "push r15",
    ".cfi_def_cfa_offset 56",
    ".cfi_offset r15, -56",
    "sub rsp, 8",
    "push qword ptr [rdi + {GUEST_BASE}]",
    "push qword ptr [rdi + {GUEST_SP}]",
    "push qword ptr [rdi + {HOST_SP}]",
    "push rdi",
    ".cfi_def_cfa_offset 96",
    "mov [rdi + {HOST_SP}], rsp",
    "mov r15, rsi",
    "mov rsp, rdx",
    // From here the frame is found through the base.
    ".cfi_remember_state",
    cfa_through_base!(),
    "mov rdi, r8",
    // The guest begins its chain of frames, and sees no register of the host.
    "xor ebx, ebx",
    "xor ebp, ebp",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    clear_scratch_registers!(),
    "call rcx",
    // The guest is done; its results are in cells, and rax is the activation. A guest that was
    // suspended, however it was entered, comes here too.
    ".globl pagefork_entered",
    ".hidden pagefork_entered",
    "pagefork_entered:",
    "mov rsp, [rax + {HOST_SP}]",
    "mov eax, {FINISHED}",
    ".cfi_restore_state",

    // -- leave -------------------------------------------------------------
    // Returns from the innermost entry.
    //   rsp  its entry frame         eax  how the guest was left
    ".Lpagefork_leave:",
    "pop rdi",
    "pop qword ptr [rdi + {HOST_SP}]",
    "pop qword ptr [rdi + {GUEST_SP}]",
    "pop qword ptr [rdi + {GUEST_BASE}]",
    ".cfi_def_cfa_offset 64",
    "add rsp, 8",
    ".cfi_def_cfa_offset 56",
    "pop r15",
    ".cfi_def_cfa_offset 48",
    "pop r14",
    ".cfi_def_cfa_offset 40",
    "pop r13",
    ".cfi_def_cfa_offset 32",
    "pop r12",
    ".cfi_def_cfa_offset 24",
    "pop rbx",
    ".cfi_def_cfa_offset 16",
    "pop rbp",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size pagefork_enter, . - pagefork_enter",

    // -- enter_outermost ---------------------------------------------------
    // As `enter`, for a call with no guest around it, of a store whose guests find things of
    // the host in scratch registers.
    //   rax  the activation          rdi  what the entry stub calls
    //   r10  the entry stub          r11  guest stack pointer, aligned to 16
    //   r15  base of the instance    and arguments, if the stub takes them
    // Returns how the guest was left in eax, and a result in rdx or xmm0. Does not preserve
    // r12 to r15.
    ".globl pagefork_enter_outermost",
    ".hidden pagefork_enter_outermost",
    ".type pagefork_enter_outermost,@function",
    ".p2align 4",
    "pagefork_enter_outermost:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "push rbx",
    ".cfi_def_cfa_offset 24",
    ".cfi_offset rbx, -24",
    // The frame is as that of `enter`, but that r12 to r15 are not in it, which who calls this
    // does not expect back and unwinders do not need, nor GUEST_SP and GUEST_BASE of no guest.
    "xor ebp, ebp",
    "sub rsp, 56",
    "push rbp",
    "push rax",
    ".cfi_def_cfa_offset 96",
    "mov [rax + {HOST_SP}], rsp",
    "mov rsp, r11",
    ".cfi_remember_state",
    cfa_through_base!(),
    // What guests keep across calls may become bytes of their pages.
    "xor ebx, ebx",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "call r10",
    "mov rsp, [rax + {HOST_SP}]",
    ".cfi_restore_state",
    "mov qword ptr [rax + {HOST_SP}], 0",
    "add rsp, 72",
    ".cfi_def_cfa_offset 24",
    "pop rbx",
    ".cfi_def_cfa_offset 16",
    "pop rbp",
    ".cfi_def_cfa_offset 8",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size pagefork_enter_outermost, . - pagefork_enter_outermost",

    // -- host_call ---------------------------------------------------------
    // Called by the guest, System V: calls a host function or service.
    //   edi  its index               r15  base of the caller
    //   rsi  its cells
    //
    //   guest stack at the call:  | .. | return |         rsp -> return
    //   while the host runs:      | .. | return | rbp |   GUEST_SP = rbp -> rbp
    ".globl pagefork_host_call",
    ".hidden pagefork_host_call",
    ".type pagefork_host_call,@function",
    "pagefork_host_call:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "movsxd rax, dword ptr [r15 + {LINK_OFFSET}]",
    "mov rax, [r15 + rax + {ACTIVATION}]",
    "mov [rax + {GUEST_SP}], rsp",
    "mov [rax + {GUEST_BASE}], r15",
    "mov rdx, rsi",
    "mov esi, edi",
    "mov rdi, rax",
    "mov rsp, [rax + {HOST_SP}]",
    ".cfi_remember_state",
    cfa_on_host_stack!(),
    // Host code keeps rbx, rbp and r12 to r15 as System V wants: so they are the
    // guest's afterwards, rbp is still its stack pointer, and r15 its base.
    "call {on_host_call}",
    "cmp eax, {CONTINUE}",
    "jne 2f",
    ".cfi_restore_state",
    clear_scratch_registers!(),
    "xor ecx, ecx",
    "xor edi, edi",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    "2:",
    ".Lpagefork_host_call_otherwise:",
    cfa_on_host_stack!(),
    "cmp eax, {CATCH}",
    "je .Lpagefork_catch",
    "cmp eax, {SUSPEND}",
    "mov eax, {LEFT}",
    "jne .Lpagefork_leave",
    // Suspend: rdx is the save area. Of the registers only those that the guest
    // expects back are saved; the stack pointer becomes a distance.
    "mov rdi, [rsp]",
    "mov rcx, [rdi + {STACK_TOP}]",
    "sub rcx, rbp",
    "mov [rdx + {SAVE_SP}], rcx",
    "mov [rdx + {SAVE_FP}], rcx",
    "mov [rdx + {SAVE_REGISTERS}], rbx",
    "mov [rdx + {SAVE_REGISTERS} + 8], r12",
    "mov [rdx + {SAVE_REGISTERS} + 16], r13",
    "mov [rdx + {SAVE_REGISTERS} + 24], r14",
    "mov dword ptr [rdx + {SAVE_KIND}], {IN_HOST_CALL}",
    "mov eax, {SUSPENDED}",
    "jmp .Lpagefork_leave",

    // Catch: rdx is the landing. The frames below it are over, and what their
    // functions had in registers is dead. The address of the landing pad is
    // left where a return address would be.
    ".Lpagefork_catch:",
    cfa_through_base!(),
    "mov rcx, rdx",
    clear_scratch_registers!(),
    "xor ebx, ebx",
    "xor edi, edi",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "mov rsp, [rcx + {LANDING_SP}]",
    "mov rbp, [rcx + {LANDING_FP}]",
    "mov rax, [rcx + {LANDING_PC}]",
    "mov [rsp - 8], rax",
    "mov rax, [rcx + {LANDING_EXCEPTION}]",
    "xor ecx, ecx",
    "jmp qword ptr [rsp - 8]",
    ".cfi_endproc",
    ".size pagefork_host_call, . - pagefork_host_call",

    // -- direct ------------------------------------------------------------
    // Called by the guest, System V: calls a host function.
    //   rdi  the record of the import   r15  base of the caller
    //   and its arguments from rsi and xmm0 on
    // Returns its result in rdx or xmm0. The shim that it calls answers in the same way, and
    // in eax what is to be done. All of them are alike but for the kind of the result, of
    // whose register the rest is cleared, since the guest may save all of it; and for
    // whether they clear the others, which at an interruption point become bytes of the
    // guest's pages.
    direct_thunk!("pagefork_direct_none", ""),
    direct_thunk!("pagefork_direct_i32", "mov edx, edx\n"),
    direct_thunk!("pagefork_direct_f32", "pslldq xmm0, 12\n psrldq xmm0, 12\n"),
    direct_thunk!("pagefork_direct_f64", "movq xmm0, xmm0\n"),
    direct_thunk!("pagefork_direct_none_clear", concat!(
        "xor edx, edx\n xorps xmm0, xmm0\n",
        clear_scratch_registers_without_results!(), "\n xor ecx, ecx\n xor edi, edi\n")),
    direct_thunk!("pagefork_direct_i32_clear", concat!(
        "mov edx, edx\n xorps xmm0, xmm0\n",
        clear_scratch_registers_without_results!(), "\n xor ecx, ecx\n xor edi, edi\n")),
    direct_thunk!("pagefork_direct_i64_clear", concat!(
        "xorps xmm0, xmm0\n",
        clear_scratch_registers_without_results!(), "\n xor ecx, ecx\n xor edi, edi\n")),
    direct_thunk!("pagefork_direct_f32_clear", concat!(
        "xor edx, edx\n pslldq xmm0, 12\n psrldq xmm0, 12\n",
        clear_scratch_registers_without_results!(), "\n xor ecx, ecx\n xor edi, edi\n")),
    direct_thunk!("pagefork_direct_f64_clear", concat!(
        "xor edx, edx\n movq xmm0, xmm0\n",
        clear_scratch_registers_without_results!(), "\n xor ecx, ecx\n xor edi, edi\n")),

    // -- foreign -----------------------------------------------------------
    // As `direct`, of functions of C's, which answer as C has it: in rax or xmm0.
    foreign_thunk!("pagefork_foreign_none", "NONE", own: ""),
    foreign_thunk!("pagefork_foreign_i32", "I32", own: "mov edx, eax"),
    foreign_thunk!("pagefork_foreign_i64", "I64", own: "mov rdx, rax"),
    foreign_thunk!("pagefork_foreign_f32", "F32", own: "pslldq xmm0, 12\n psrldq xmm0, 12"),
    foreign_thunk!("pagefork_foreign_f64", "F64", own: "movq xmm0, xmm0"),

    // -- cells -------------------------------------------------------------
    // As `foreign`, of functions of C's on cells: of one, or of as many as there may be. One more lies between these and
    // the frame: a function that writes its result behind its arguments has a wrong result, and nothing else.
    foreign_thunk!("pagefork_cell_none", "NONE", cells: "32", "128", argument_to_cell!(), ""),
    foreign_thunk!("pagefork_cell_i32", "I32", cells: "32", "128", argument_to_cell!(), "mov edx, [rsp]"),
    foreign_thunk!("pagefork_cell_i64", "I64", cells: "32", "128", argument_to_cell!(), "mov rdx, [rsp]"),
    foreign_thunk!("pagefork_cell_f32", "F32", cells: "32", "128", argument_to_cell!(), "movss xmm0, [rsp]"),
    foreign_thunk!("pagefork_cell_f64", "F64", cells: "32", "128", argument_to_cell!(), "movsd xmm0, [rsp]"),
    foreign_thunk!("pagefork_cells_none", "NONE", cells: "96", "192", arguments_to_cells!(), ""),
    foreign_thunk!("pagefork_cells_i32", "I32", cells: "96", "192", arguments_to_cells!(), "mov edx, [rsp]"),
    foreign_thunk!("pagefork_cells_i64", "I64", cells: "96", "192", arguments_to_cells!(), "mov rdx, [rsp]"),
    foreign_thunk!("pagefork_cells_f32", "F32", cells: "96", "192", arguments_to_cells!(), "movss xmm0, [rsp]"),
    foreign_thunk!("pagefork_cells_f64", "F64", cells: "96", "192", arguments_to_cells!(), "movsd xmm0, [rsp]"),

    // Not going on is the same for all host calls.
    ".Lpagefork_direct_otherwise:",
    ".cfi_startproc",
    cfa_on_host_stack!(),
    "mov rdx, [rsp]",
    "mov rdx, [rdx + {DIRECT_PLACE}]",
    "jmp .Lpagefork_host_call_otherwise",
    ".cfi_endproc",

    // -- interrupt ---------------------------------------------------------
    // Called by the guest at an interruption point; preserves every register.
    //   r15  base of the caller
    ".globl pagefork_interrupt",
    ".hidden pagefork_interrupt",
    ".type pagefork_interrupt,@function",
    "pagefork_interrupt:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, {INTERRUPT_BLOCK}",
    "movups [rsp + 0x00], xmm0",
    "movups [rsp + 0x10], xmm1",
    "movups [rsp + 0x20], xmm2",
    "movups [rsp + 0x30], xmm3",
    "movups [rsp + 0x40], xmm4",
    "movups [rsp + 0x50], xmm5",
    "movups [rsp + 0x60], xmm6",
    "movups [rsp + 0x70], xmm7",
    "movups [rsp + 0x80], xmm8",
    "movups [rsp + 0x90], xmm9",
    "movups [rsp + 0xa0], xmm10",
    "movups [rsp + 0xb0], xmm11",
    "movups [rsp + 0xc0], xmm12",
    "movups [rsp + 0xd0], xmm13",
    "movups [rsp + 0xe0], xmm14",
    "movups [rsp + 0xf0], xmm15",
    "mov [rsp + 0x100], rax",
    "mov [rsp + 0x108], rcx",
    "mov [rsp + 0x110], rdx",
    "mov [rsp + 0x118], rbx",
    "mov [rsp + 0x120], rsi",
    "mov [rsp + 0x128], rdi",
    "mov [rsp + 0x130], r8",
    "mov [rsp + 0x138], r9",
    "mov [rsp + 0x140], r10",
    "mov [rsp + 0x148], r11",
    "mov [rsp + 0x150], r12",
    "mov [rsp + 0x158], r13",
    "mov [rsp + 0x160], r14",
    // A suspended guest is compared and copied: no stale bytes in its frames.
    "mov qword ptr [rsp + 0x168], 0",
    "movsxd rax, dword ptr [r15 + {LINK_OFFSET}]",
    "mov rdi, [r15 + rax + {ACTIVATION}]",
    "mov [rdi + {GUEST_SP}], rsp",
    "mov [rdi + {GUEST_BASE}], r15",
    "mov rsi, rbp",
    "mov rsp, [rdi + {HOST_SP}]",
    ".cfi_remember_state",
    cfa_on_host_stack!(),
    "call {on_interrupt}",
    "cmp eax, {CONTINUE}",
    "jne 3f",
    ".cfi_restore_state",
    // rbp is the frame pointer of this thunk's frame, in any slot.
    ".Lpagefork_interrupt_return:",
    "lea rsp, [rbp - {INTERRUPT_BLOCK}]",
    "movups xmm0, [rsp + 0x00]",
    "movups xmm1, [rsp + 0x10]",
    "movups xmm2, [rsp + 0x20]",
    "movups xmm3, [rsp + 0x30]",
    "movups xmm4, [rsp + 0x40]",
    "movups xmm5, [rsp + 0x50]",
    "movups xmm6, [rsp + 0x60]",
    "movups xmm7, [rsp + 0x70]",
    "movups xmm8, [rsp + 0x80]",
    "movups xmm9, [rsp + 0x90]",
    "movups xmm10, [rsp + 0xa0]",
    "movups xmm11, [rsp + 0xb0]",
    "movups xmm12, [rsp + 0xc0]",
    "movups xmm13, [rsp + 0xd0]",
    "movups xmm14, [rsp + 0xe0]",
    "movups xmm15, [rsp + 0xf0]",
    "mov rax, [rsp + 0x100]",
    "mov rcx, [rsp + 0x108]",
    "mov rdx, [rsp + 0x110]",
    "mov rbx, [rsp + 0x118]",
    "mov rsi, [rsp + 0x120]",
    "mov rdi, [rsp + 0x128]",
    "mov r8, [rsp + 0x130]",
    "mov r9, [rsp + 0x138]",
    "mov r10, [rsp + 0x140]",
    "mov r11, [rsp + 0x148]",
    "mov r12, [rsp + 0x150]",
    "mov r13, [rsp + 0x158]",
    "mov r14, [rsp + 0x160]",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    "3:",
    cfa_on_host_stack!(),
    "cmp eax, {SUSPEND}",
    "mov eax, {LEFT}",
    "jne .Lpagefork_leave",
    // Suspend: every register lies in the block, so only the place is saved.
    "mov rdi, [rsp]",
    "mov rcx, [rdi + {STACK_TOP}]",
    "sub rcx, rbp",
    "mov [rdx + {SAVE_FP}], rcx",
    "add rcx, {INTERRUPT_BLOCK}",
    "mov [rdx + {SAVE_SP}], rcx",
    "mov dword ptr [rdx + {SAVE_KIND}], {AT_INTERRUPT}",
    "mov eax, {SUSPENDED}",
    "jmp .Lpagefork_leave",
    ".cfi_endproc",
    ".size pagefork_interrupt, . - pagefork_interrupt",

    // -- trap --------------------------------------------------------------
    // Called by the guest to trap, System V; does not return.
    //   edi  the trap code           r15  base of the caller
    ".globl pagefork_trap",
    ".hidden pagefork_trap",
    ".type pagefork_trap,@function",
    "pagefork_trap:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "movsxd rax, dword ptr [r15 + {LINK_OFFSET}]",
    "mov rax, [r15 + rax + {ACTIVATION}]",
    "mov esi, edi",
    "mov rdi, rax",
    "mov rdx, rbp",
    "xor ecx, ecx",
    "xor r8d, r8d",
    "mov rsp, [rdi + {HOST_SP}]",
    ".cfi_endproc",
    ".size pagefork_trap, . - pagefork_trap",

    // -- trapped -----------------------------------------------------------
    // Where the signal handler sends a guest that trapped.
    //   rdi  the activation          rdx  frame pointer of the guest
    //   esi  the trap code           rcx  address of the instruction, or 0
    //   rsp  the entry frame         r8   return address on top of the stack, if
    //                                     that instruction is a function's first
    ".globl pagefork_trapped",
    ".hidden pagefork_trapped",
    ".type pagefork_trapped,@function",
    "pagefork_trapped:",
    ".cfi_startproc",
    cfa_on_host_stack!(),
    "call {on_trap}",
    "mov eax, {LEFT}",
    "jmp .Lpagefork_leave",
    ".cfi_endproc",
    ".size pagefork_trapped, . - pagefork_trapped",

    // -- memory_move, memory_set -------------------------------------------
    // Called by the guest, System V: `memmove` and `memset` on ranges that are
    // accessible.
    //   rdi  where to                r15  base of the caller
    //   rsi  where from, or the byte
    //   rdx  how many bytes
    library_thunk!("pagefork_memory_move", "memmove"),
    library_thunk!("pagefork_memory_set", "memset"),
    // In stores that have absent pages; also given:
    //   rcx  the activation          r8   frame pointer of the thunk
    library_thunk!("pagefork_memory_move_waiting", "move_waiting", "mov rcx, rax\nmov r8, rbp\n"),
    library_thunk!("pagefork_memory_set_waiting", "set_waiting", "mov rcx, rax\nmov r8, rbp\n"),

    // -- resume ------------------------------------------------------------
    // Goes on with a suspended guest; returns as `enter` does.
    //   rdi  the activation          rdx  guest frame pointer to go on from
    //   rsi  base of the instance    rcx  the save area
    //   r8   bits of the first result of the host call that it is suspended in
    //   r9   where to land instead, because it throws; or 0
    ".globl pagefork_resume",
    ".hidden pagefork_resume",
    ".type pagefork_resume,@function",
    "pagefork_resume:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "push rbx",
    ".cfi_def_cfa_offset 24",
    ".cfi_offset rbx, -24",
    "push r12",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset r12, -32",
    "push r13",
    ".cfi_def_cfa_offset 40",
    ".cfi_offset r13, -40",
    "push r14",
    ".cfi_def_cfa_offset 48",
    ".cfi_offset r14, -48",
    "push r15",
    ".cfi_def_cfa_offset 56",
    ".cfi_offset r15, -56",
    "sub rsp, 8",
    "push qword ptr [rdi + {GUEST_BASE}]",
    "push qword ptr [rdi + {GUEST_SP}]",
    "push qword ptr [rdi + {HOST_SP}]",
    "push rdi",
    ".cfi_def_cfa_offset 96",
    "mov [rdi + {HOST_SP}], rsp",
    "mov r15, rsi",
    "mov rbp, rdx",
    "mov eax, [rcx + {SAVE_KIND}]",
    "mov rbx, [rcx + {SAVE_REGISTERS}]",
    "mov r12, [rcx + {SAVE_REGISTERS} + 8]",
    "mov r13, [rcx + {SAVE_REGISTERS} + 16]",
    "mov r14, [rcx + {SAVE_REGISTERS} + 24]",
    // The save area is all zero unless its instance is suspended.
    "xor edx, edx",
    "mov [rcx + {SAVE_KIND}], rdx",
    "mov [rcx + {SAVE_SP}], rdx",
    "mov [rcx + {SAVE_FP}], rdx",
    "mov [rcx + {SAVE_REGISTERS}], rdx",
    "mov [rcx + {SAVE_REGISTERS} + 8], rdx",
    "mov [rcx + {SAVE_REGISTERS} + 16], rdx",
    "mov [rcx + {SAVE_REGISTERS} + 24], rdx",
    "mov rdx, r9",
    "test r9, r9",
    "jne .Lpagefork_catch",
    "cmp eax, {AT_INTERRUPT}",
    "je .Lpagefork_interrupt_return",
    // A direct call has its result in one of two registers.
    cfa_through_base!(),
    "mov rdx, r8",
    "movq xmm0, r8",
    clear_scratch_registers_without_results!(),
    "xor ecx, ecx",
    "xor edi, edi",
    "mov rsp, rbp",
    "pop rbp",
    "ret",
    ".cfi_endproc",
    ".size pagefork_resume, . - pagefork_resume",

    ".globl pagefork_thunks_end",
    ".hidden pagefork_thunks_end",
    "pagefork_thunks_end:",
    ".popsection",

    HOST_SP = const link::activation::HOST_SP,
    GUEST_SP = const link::activation::GUEST_SP,
    GUEST_BASE = const link::activation::GUEST_BASE,
    STACK_TOP = const link::activation::STACK_TOP,
    ACTIVATION = const link::ACTIVATION,
    LINK_OFFSET = const state::LINK_OFFSET,
    SAVE_KIND = const save::KIND,
    SAVE_SP = const save::SP,
    SAVE_FP = const save::FP,
    SAVE_REGISTERS = const save::REGISTERS,
    IN_HOST_CALL = const save::Suspension::HostCall as u64,
    AT_INTERRUPT = const save::Suspension::Interrupt as u64,
    INTERRUPT_BLOCK = const INTERRUPT_BLOCK,
    RECORD_ACTIVATION = const link::function_import::ACTIVATION,
    RECORD_SHIM = const link::function_import::SHIM,
    RECORD_CLOSURE = const link::function_import::CLOSURE,
    CALLER_BITS = const ForeignCaller::BITS,
    DUE = const offset_of!(Activation, due),
    AFTER_HOST_CALLS = const Due::AFTER_HOST_CALLS,
    NONE = const direct::NONE,
    I32 = const direct::I32,
    I64 = const direct::I64,
    F32 = const direct::F32,
    F64 = const direct::F64,
    DIRECT_PLACE = const offset_of!(Activation, direct_place),
    LANDING_SP = const offset_of!(Landing, sp),
    LANDING_FP = const offset_of!(Landing, fp),
    LANDING_PC = const offset_of!(Landing, pc),
    LANDING_EXCEPTION = const offset_of!(Landing, exception),
    CATCH = const CATCH,
    CONTINUE = const CONTINUE,
    SUSPEND = const SUSPEND,
    FINISHED = const FINISHED,
    LEFT = const LEFT,
    SUSPENDED = const SUSPENDED,
    on_host_call = sym super::on_host_call,
    after_foreign_call = sym direct::after_foreign_call,
    after_call_on_cells = sym direct::after_call_on_cells,
    end_unwinding = sym direct::end_unwinding,
    on_interrupt = sym super::on_interrupt,
    on_trap = sym super::on_trap,
    memmove = sym libc::memmove,
    memset = sym libc::memset,
    move_waiting = sym super::bulk::move_waiting,
    set_waiting = sym super::bulk::set_waiting,
);

// The unwind expression of `enter` is written with these two as zero.
const _: () = assert!(link::ACTIVATION == 0 && link::activation::HOST_SP == 0);
const _: () = assert!(state::LINK_OFFSET == -8);

/// Leaves the guest from what a library thunk has called, as the signal handler does.
///
/// # Safety
/// The activation's guest waits in a library thunk with the frame pointer `frame`, and no frame
/// between that and the caller has anything to drop.
pub(super) unsafe fn leave_trapped(activation: *mut Activation, code: TrapCode, frame: usize) -> ! {
    // SAFETY: by this function's contract the entry frame at HOST_SP is intact, and what lies below
    // it is not needed any more.
    unsafe {
        asm!(
            "mov rsp, [rdi + {HOST_SP}]",
            "jmp pagefork_trapped",
            HOST_SP = const offset_of!(Activation, host_sp),
            in("rdi") activation,
            in("esi") code as u32,
            in("rdx") frame,
            in("rcx") 0,
            in("r8") 0,
            options(noreturn),
        )
    }
}
