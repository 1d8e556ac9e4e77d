//! What compiling may cost. Most of it is linear in the module; what is not, inside Cranelift, is
//! estimated before it happens, and refused beyond limits.
//!
//! Two things are more than linear: what is done once for each loop around an operator, and what
//! is done for each value all the while it is live. The first is counted as operators are read, so
//! that the error can say where; the second on the optimised function.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cranelift_codegen::Context;
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, Function, Value};
use cranelift_codegen::loop_analysis::LoopAnalysis;

use wasmparser::Operator;

use crate::CompileError;

/// What compiling one module may cost. The code does not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompileLimits {
    /// Time from start to end; `None` for as long as it takes. It is looked at between operators,
    /// functions and phases of a function, so the end can be late by the time that one phase takes,
    /// which [`Self::work`] limits.
    pub time: Option<Duration>,
    /// Estimated bytes in use at once by the functions that are being compiled; one that needs
    /// more is refused, and those that fit only one after the other wait for each other. The
    /// module itself, and code that is finished, are not counted.
    pub memory: u64,
    /// Estimated steps of what is more than linear, for one function. A million takes 20 ms.
    pub work: u64,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self { time: None, memory: 2 << 30, work: 1 << 28 }
    }
}

/// What is left of the limits while a module is compiled.
pub(crate) struct Effort {
    limits: CompileLimits,
    start: Instant,
    /// Estimated bytes in use.
    used: Mutex<u64>,
    freed: Condvar,
}

impl Effort {
    pub(crate) fn new(limits: CompileLimits) -> Self {
        Self { limits, start: Instant::now(), used: Mutex::new(0), freed: Condvar::new() }
    }

    /// # Errors
    /// If the time is over.
    pub(crate) fn check_time(&self) -> Result<(), CompileError> {
        match self.limits.time {
            Some(limit) if self.start.elapsed() > limit => Err(CompileError::TimedOut { limit }),
            _ => Ok(()),
        }
    }

    fn refuse_beyond(
        &self,
        function: u32,
        offset: u64,
        need: (&'static str, u64),
    ) -> Result<(), CompileError> {
        let (what, estimate) = need;
        let limit = if what == MEMORY { self.limits.memory } else { self.limits.work };
        if estimate <= limit {
            return Ok(());
        }
        Err(CompileError::TooCostly { function, offset, what, estimate, limit })
    }

    /// Waits until there is room for a function that is about to be optimised.
    ///
    /// # Errors
    /// If there can never be, or the time is over.
    pub(crate) fn reserve(
        &self,
        function: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<Reserved<'_>, CompileError> {
        self.refuse_beyond(function, offset, (MEMORY, bytes))?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        while *used > 0 && *used + bytes > self.limits.memory {
            let now_and_then = Duration::from_millis(100);
            let waited = self.freed.wait_timeout(used, now_and_then);
            used = waited.unwrap_or_else(PoisonError::into_inner).0;
            self.check_time()?;
        }
        *used += bytes;
        Ok(Reserved { effort: self, bytes })
    }

    /// Looks at an optimised function before its registers are allocated.
    ///
    /// # Errors
    /// If that would be too much.
    pub(crate) fn check_optimised(
        &self,
        function: u32,
        offset: u64,
        context: &mut Context,
        reserved: &mut Reserved<'_>,
    ) -> Result<(), CompileError> {
        self.check_time()?;
        if context.func.dfg.num_insts() < SMALL {
            return Ok(());
        }
        let live = LiveArea::of(context);
        self.refuse_beyond(function, offset, ("values that are live for long", live.instructions))?;
        let bytes = size_of_ir(&context.func) + live.blocks * LIVE_IN_BLOCK;
        self.refuse_beyond(function, offset, (MEMORY, bytes))?;
        reserved.grow_to(bytes);
        Ok(())
    }
}

/// Room for the compilation of a function, until dropped.
pub(crate) struct Reserved<'a> {
    effort: &'a Effort,
    bytes: u64,
}

impl Reserved<'_> {
    /// Counts more, without waiting: two that wait for each other would do so forever.
    fn grow_to(&mut self, bytes: u64) {
        let more = bytes.saturating_sub(self.bytes);
        *self.effort.used.lock().unwrap_or_else(PoisonError::into_inner) += more;
        self.bytes += more;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        *self.effort.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.effort.freed.notify_all();
    }
}

/// Functions of fewer instructions are not worth a look.
const SMALL: usize = 1000;

const MEMORY: &str = "bytes of memory";

/// Bytes that Cranelift comes to use for an instruction, a value, a block, and a value in the block
/// that is live at the start of another: as measured, and rounded up.
const INSTRUCTION: u64 = 400;
const VALUE: u64 = 120;
const BLOCK: u64 = 500;
const LIVE_IN_BLOCK: u64 = 2;

/// Bytes that the builder keeps for a variable and a block.
const VARIABLE_IN_BLOCK: u64 = 4;

/// Bytes for a function as it is now.
fn size_of_ir(func: &Function) -> u64 {
    let dfg = &func.dfg;
    let [insts, values, blocks] =
        [dfg.num_insts(), dfg.num_values(), dfg.num_blocks()].map(|count| count as u64);
    insts * INSTRUCTION + values * VALUE + blocks * BLOCK
}

/// Looks after a function while it is translated.
pub(crate) struct Watch<'a> {
    effort: &'a Effort,
    function: u32,
    operators: u64,
    work: u64,
    /// The variables that were used, and how many.
    seen: Vec<bool>,
    variables: u64,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(effort: &'a Effort, function: u32) -> Self {
        Self { effort, function, operators: 0, work: 0, seen: Vec::new(), variables: 0 }
    }

    /// To be said after each operator: at `offset`, in so many loops, with the function as it is
    /// now.
    ///
    /// # Errors
    /// If it is too much.
    pub(crate) fn operator(
        &mut self,
        operator: &Operator<'_>,
        offset: u64,
        loops: u32,
        func: &Function,
    ) -> Result<(), CompileError> {
        if let Operator::LocalGet { local_index }
        | Operator::LocalSet { local_index }
        | Operator::LocalTee { local_index } = operator
        {
            self.local(*local_index as usize);
        }
        self.operators += 1;
        if self.operators.is_multiple_of(1024) {
            self.effort.check_time()?;
        }
        // What changes in each of the loops costs each of them for each.
        let loops = u64::from(loops);
        self.work += loops * loops / 16;
        let work = ("operators in loops in loops", self.work);
        self.effort.refuse_beyond(self.function, offset, work)?;
        self.effort.refuse_beyond(self.function, offset, (MEMORY, self.bytes(func)))
    }

    fn local(&mut self, index: usize) {
        if self.seen.len() <= index {
            self.seen.resize(index + 1, false);
        }
        self.variables += u64::from(!std::mem::replace(&mut self.seen[index], true));
    }

    /// Estimated bytes for the function as it is now.
    pub(crate) fn bytes(&self, func: &Function) -> u64 {
        size_of_ir(func) + self.variables * func.dfg.num_blocks() as u64 * VARIABLE_IN_BLOCK
    }
}

/// Through how much of a function its values live, all together.
struct LiveArea {
    /// Counted in instructions.
    instructions: u64,
    /// Counted in starts of blocks.
    blocks: u64,
}

/// A place: the block and the instruction, as counted in the order of the code.
type Place = [u64; 2];

impl LiveArea {
    fn of(context: &mut Context) -> Self {
        if !context.loop_analysis.is_valid() {
            context.compute_loop_analysis();
        }
        let (func, loops) = (&context.func, &context.loop_analysis);
        let (starts, ends) = places(func, loops);

        let mut lives: SecondaryMap<Value, [Place; 2]> =
            SecondaryMap::with_capacity(func.dfg.num_values());
        let mut place = [0, 0];
        for block in func.layout.blocks() {
            for param in func.dfg.block_params(block) {
                lives[*param] = [place; 2];
            }
            for inst in func.layout.block_insts(block) {
                for result in func.dfg.inst_results(inst) {
                    lives[*result] = [place; 2];
                }
                place[1] += 1;
            }
            place[0] += 1;
        }
        let mut place = [0, 0];
        for block in func.layout.blocks() {
            for inst in func.layout.block_insts(block) {
                for value in func.dfg.inst_values(inst) {
                    let [made, last] = &mut lives[value];
                    // What was made before a loop is live all through it.
                    let mut until = place;
                    let mut around = loops.innermost_loop(block);
                    while let Some(one) = around
                        && starts[loops.loop_header(one)] > *made
                    {
                        until = ends[loops.loop_header(one)];
                        around = loops.loop_parent(one);
                    }
                    *last = until.max(*last);
                }
                place[1] += 1;
            }
            place[0] += 1;
        }
        let mut area = Self { instructions: 0, blocks: 0 };
        for [made, last] in lives.values() {
            area.blocks += last[0] - made[0];
            area.instructions += last[1] - made[1];
        }
        area
    }
}

/// Where each block starts, and where the loop ends that starts with it.
fn places(
    func: &Function,
    loops: &LoopAnalysis,
) -> (SecondaryMap<Block, Place>, SecondaryMap<Block, Place>) {
    let (mut starts, mut ends) = (SecondaryMap::new(), SecondaryMap::new());
    let mut place = [0, 0];
    for block in func.layout.blocks() {
        starts[block] = place;
        place[0] += 1;
        place[1] += func.layout.block_insts(block).count() as u64;
        if let Some(innermost) = loops.innermost_loop(block) {
            ends[loops.loop_header(innermost)] = place;
        }
    }
    // Inner loops are numbered after those around them.
    let all: Vec<_> = loops.loops().collect();
    for one in all.into_iter().rev() {
        if let Some(around) = loops.loop_parent(one) {
            let [inner, outer] = [one, around].map(|one| loops.loop_header(one));
            ends[outer] = ends[outer].max(ends[inner]);
        }
    }
    (starts, ends)
}
