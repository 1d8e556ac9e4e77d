//! What compiling a module may cost. Most of it is linear in the module. What is not, inside
//! Cranelift, is estimated before it happens, and refused beyond limits.
//!
//! Two things grow faster than the module: what Cranelift does once for each loop around an
//! operator, and what it does for each value while the value is live. The first is counted as
//! operators are read, so that the error can say where; the second on the optimised function.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cranelift_codegen::Context;
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{
    Block, DataFlowGraph, Function, Inst, InstructionData, Opcode, Value, ValueDef,
};
use cranelift_codegen::loop_analysis::LoopAnalysis;

use wasmparser::Operator;

use crate::base::error::CompileError;
use crate::base::options::CompileLimits;

/// What a module has used up of its limits.
pub(crate) struct Effort {
    limits: CompileLimits,
    start: Instant,
    /// Estimated steps so far.
    work: AtomicU64,
    /// Estimated bytes in use by functions that are being compiled.
    reserved: Mutex<u64>,
    freed: Condvar,
    /// Bytes of finished code.
    finished: AtomicU64,
}

/// A function, and a place in the module, in bytes: what an error names.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    pub(crate) function: u32,
    pub(crate) offset: u64,
}

impl Effort {
    pub(crate) fn new(limits: CompileLimits) -> Self {
        Self {
            limits,
            start: Instant::now(),
            work: AtomicU64::new(0),
            reserved: Mutex::new(0),
            freed: Condvar::new(),
            finished: AtomicU64::new(0),
        }
    }

    /// # Errors
    /// If the time is over.
    pub(crate) fn check_time(&self) -> Result<(), CompileError> {
        match self.limits.time {
            Some(limit) if self.start.elapsed() > limit => Err(CompileError::TimedOut { limit }),
            _ => Ok(()),
        }
    }

    /// Counts `steps` more, of `own` that the function has come to with them.
    ///
    /// # Errors
    /// If that is more than one function, or the module, may need.
    fn spend(&self, site: Site, steps: u64, own: u64, why: Why) -> Result<(), CompileError> {
        let before = self.work.fetch_add(steps, Ordering::Relaxed);
        refuse_beyond(self.limits.work / ONE_FUNCTION, site, why.in_function, own)?;
        refuse_beyond(self.limits.work, site, why.in_module, before + steps)
    }

    /// # Errors
    /// If a function needs more memory than there is for all.
    fn check_memory(&self, site: Site, bytes: u64) -> Result<(), CompileError> {
        refuse_beyond(self.limits.memory, site, MEMORY, bytes)
    }

    fn reserved(&self) -> MutexGuard<'_, u64> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for a function that is about to be optimised.
    ///
    /// # Errors
    /// If there can never be, or the time is over.
    pub(crate) fn reserve(&self, site: Site, bytes: u64) -> Result<Reserved<'_>, CompileError> {
        self.check_memory(site, bytes)?;
        let mut reserved = self.reserved();
        while *reserved > 0 && *reserved + bytes > self.limits.memory {
            let step = Duration::from_millis(100);
            let waited = self.freed.wait_timeout(reserved, step);
            reserved = waited.unwrap_or_else(PoisonError::into_inner).0;
            self.check_time()?;
        }
        *reserved += bytes;
        Ok(Reserved { effort: self, bytes })
    }

    /// Counts the code of a function that is finished.
    ///
    /// # Errors
    /// If all finished code together is too much.
    pub(crate) fn finish(&self, site: Site, bytes: u64) -> Result<(), CompileError> {
        let before = self.finished.fetch_add(bytes, Ordering::Relaxed);
        refuse_beyond(self.limits.memory, site, "bytes of finished code", before + bytes)
    }

    /// Looks at an optimised function before its registers are allocated.
    ///
    /// # Errors
    /// If that would be too much.
    pub(crate) fn check_optimised(
        &self,
        site: Site,
        context: &mut Context,
        reserved: &mut Reserved<'_>,
    ) -> Result<(), CompileError> {
        self.check_time()?;
        if context.func.dfg.num_insts() < SMALL {
            return Ok(());
        }
        let live = LiveArea::of(context);
        self.spend(site, live.instructions, live.instructions, LIVE_VALUES)?;
        let bytes = size_of_ir(&context.func) + live.blocks * LIVE_IN_BLOCK;
        self.check_memory(site, bytes)?;
        reserved.grow_to(bytes);
        Ok(())
    }
}

/// The error for a module that needs more than `limit`, if it does.
fn refuse_beyond(
    limit: u64,
    site: Site,
    what: &'static str,
    estimate: u64,
) -> Result<(), CompileError> {
    if estimate <= limit {
        return Ok(());
    }
    let Site { function, offset } = site;
    Err(CompileError::TooCostly { function, offset, what, estimate, limit })
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
        *self.effort.reserved() += more;
        self.bytes += more;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        *self.effort.reserved() -= self.bytes;
        self.effort.freed.notify_all();
    }
}

/// Which part of all work one function may need.
const ONE_FUNCTION: u64 = 4;

/// What steps are for, as errors say it.
struct Why {
    in_function: &'static str,
    in_module: &'static str,
}

const LIVE_VALUES: Why = Why {
    in_function: "steps in it for values that live long",
    in_module: "steps in all for values that live long",
};

const NESTED_LOOPS: Why = Why {
    in_function: "steps in it for operators in nested loops",
    in_module: "steps in all for operators in nested loops",
};

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

/// Counts what a function costs while it is translated.
pub(crate) struct FunctionEffort<'a> {
    effort: &'a Effort,
    function: u32,
    operators: u64,
    /// Steps so far, and how many of them the module's count has.
    work: u64,
    counted: u64,
    /// The variables that were used, and how many.
    seen: Vec<bool>,
    variables: u64,
}

impl<'a> FunctionEffort<'a> {
    pub(crate) fn new(effort: &'a Effort, function: u32) -> Self {
        Self { effort, function, operators: 0, work: 0, counted: 0, seen: Vec::new(), variables: 0 }
    }

    /// To be called after each operator: at `offset`, in `loops` loops, with the function as it
    /// is now.
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
        // What changes in each of the loops costs each of them for each.
        let loops = u64::from(loops);
        self.work += loops * loops / 16;
        self.operators += 1;
        let site = Site { function: self.function, offset };
        let last = matches!(operator, Operator::End) && loops == 0;
        let more = self.work - self.counted;
        if more >= 1024 || (last && more > 0) {
            self.counted = self.work;
            self.effort.spend(site, more, self.work, NESTED_LOOPS)?;
        }
        if self.operators.is_multiple_of(1024) {
            self.effort.check_time()?;
        }
        self.effort.check_memory(site, self.bytes(func))
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

/// The number of a block and that of an instruction, as counted in the order of the code.
type Position = [u64; 2];

impl LiveArea {
    fn of(context: &mut Context) -> Self {
        if !context.loop_analysis.is_valid() {
            context.compute_loop_analysis();
        }
        let (func, loops) = (&context.func, &context.loop_analysis);
        let (starts, ends) = loop_positions(func, loops);

        let mut lives: SecondaryMap<Value, [Position; 2]> =
            SecondaryMap::with_capacity(func.dfg.num_values());
        let mut position = [0, 0];
        for block in func.layout.blocks() {
            for param in func.dfg.block_params(block) {
                lives[*param] = [position; 2];
            }
            for inst in func.layout.block_insts(block) {
                for result in func.dfg.inst_results(inst) {
                    lives[*result] = [position; 2];
                }
                position[1] += 1;
            }
            position[0] += 1;
        }
        let mut position = [0, 0];
        for block in func.layout.blocks() {
            for inst in func.layout.block_insts(block) {
                in_registers(&func.dfg, inst, |value| {
                    let [made, last] = &mut lives[value];
                    // What was made before a loop is live all through it.
                    let mut until = position;
                    let mut around = loops.innermost_loop(block);
                    while let Some(one) = around
                        && starts[loops.loop_header(one)] > *made
                    {
                        until = ends[loops.loop_header(one)];
                        around = loops.loop_parent(one);
                    }
                    *last = until.max(*last);
                });
                position[1] += 1;
            }
            position[0] += 1;
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
fn loop_positions(
    func: &Function,
    loops: &LoopAnalysis,
) -> (SecondaryMap<Block, Position>, SecondaryMap<Block, Position>) {
    let (mut starts, mut ends) = (SecondaryMap::new(), SecondaryMap::new());
    let mut position = [0, 0];
    for block in func.layout.blocks() {
        starts[block] = position;
        position[0] += 1;
        position[1] += func.layout.block_insts(block).count() as u64;
        if let Some(innermost) = loops.innermost_loop(block) {
            ends[loops.loop_header(innermost)] = position;
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

/// The values that an instruction needs in registers. Small constants become parts of the
/// instructions that use them, and sums become parts of the loads and stores that they are the
/// addresses of: their operands are in registers then.
fn in_registers(dfg: &DataFlowGraph, inst: Inst, mut visit: impl FnMut(Value)) {
    let data = &dfg.insts[inst];
    let (immediate, address) = match data {
        InstructionData::Load { .. } => (None, Some(0)),
        InstructionData::Store { opcode: Opcode::Store, .. } => (Some(0), Some(1)),
        InstructionData::Store { .. } => (None, Some(1)),
        InstructionData::Binary { .. } | InstructionData::IntCompare { .. } => (Some(1), None),
        _ => (None, None),
    };
    for (position, value) in dfg.inst_values(inst).enumerate() {
        if immediate == Some(position) && is_small_constant(dfg, value) {
            continue;
        }
        let sum = defined_by(dfg, value).filter(|sum| dfg.insts[*sum].opcode() == Opcode::Iadd);
        match sum {
            Some(sum) if address == Some(position) => {
                let terms = dfg.inst_args(sum).iter().copied();
                terms.filter(|term| !is_small_constant(dfg, *term)).for_each(&mut visit);
            }
            _ => visit(value),
        }
    }
}

/// Whether a value is a constant that fits the immediate of an instruction.
fn is_small_constant(dfg: &DataFlowGraph, value: Value) -> bool {
    defined_by(dfg, value).is_some_and(|inst| match dfg.insts[inst] {
        InstructionData::UnaryImm { imm, .. } => {
            i32::try_from(imm.bits()).is_ok() || dfg.value_type(value).bits() <= 32
        }
        _ => false,
    })
}

fn defined_by(dfg: &DataFlowGraph, value: Value) -> Option<Inst> {
    match dfg.value_def(value) {
        ValueDef::Result(inst, _) => Some(inst),
        _ => None,
    }
}
