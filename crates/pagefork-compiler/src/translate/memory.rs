//! Loads and stores of memories, and their sizes.

use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use pagefork_layout::link::Service;
use wasmparser::{MemArg, Operator};

use super::Translator;

impl Translator<'_> {
    pub(super) fn memory(&mut self, op: &Operator<'_>) -> bool {
        use types::{F32, F64, I32, I64};
        match op {
            Operator::I32Load { memarg } => self.full_load(memarg, I32),
            Operator::I64Load { memarg } => self.full_load(memarg, I64),
            Operator::F32Load { memarg } => self.full_load(memarg, F32),
            Operator::F64Load { memarg } => self.full_load(memarg, F64),
            Operator::I32Load8U { memarg } => self.narrow_load(memarg, types::I8, I32, false),
            Operator::I32Load8S { memarg } => self.narrow_load(memarg, types::I8, I32, true),
            Operator::I32Load16U { memarg } => self.narrow_load(memarg, types::I16, I32, false),
            Operator::I32Load16S { memarg } => self.narrow_load(memarg, types::I16, I32, true),
            Operator::I64Load8U { memarg } => self.narrow_load(memarg, types::I8, I64, false),
            Operator::I64Load8S { memarg } => self.narrow_load(memarg, types::I8, I64, true),
            Operator::I64Load16U { memarg } => self.narrow_load(memarg, types::I16, I64, false),
            Operator::I64Load16S { memarg } => self.narrow_load(memarg, types::I16, I64, true),
            Operator::I64Load32U { memarg } => self.narrow_load(memarg, I32, I64, false),
            Operator::I64Load32S { memarg } => self.narrow_load(memarg, I32, I64, true),
            Operator::I32Store { memarg }
            | Operator::I64Store { memarg }
            | Operator::F32Store { memarg }
            | Operator::F64Store { memarg } => self.store(memarg, None),
            Operator::I32Store8 { memarg } | Operator::I64Store8 { memarg } => {
                self.store(memarg, Some(types::I8));
            }
            Operator::I32Store16 { memarg } | Operator::I64Store16 { memarg } => {
                self.store(memarg, Some(types::I16));
            }
            Operator::I64Store32 { memarg } => self.store(memarg, Some(I32)),
            Operator::MemorySize { mem } => {
                let bytes = self.memory_size(*mem);
                let pages = self.b.ins().ushr_imm_u(bytes, 16);
                let pages = self.as_index(pages, self.is_memory64(*mem));
                self.push(pages);
            }
            Operator::MemoryGrow { mem } => {
                let (memory, delta) = (self.index(*mem), self.pop());
                self.service(Service::MemoryGrow, &[memory, delta]);
                let old = self.load_cell(0, if self.is_memory64(*mem) { I64 } else { I32 });
                self.push(old);
            }
            Operator::MemoryFill { mem } => self.memory_fill(*mem),
            Operator::MemoryDiscard { mem } => {
                let (memory, length, start) = (self.index(*mem), self.pop(), self.pop());
                self.service(Service::MemoryDiscard, &[memory, start, length]);
            }
            Operator::MemoryCopy { dst_mem, src_mem } => self.memory_copy(*dst_mem, *src_mem),
            Operator::MemoryInit { data_index, mem } => {
                let (memory, segment) = (self.index(*mem), self.index(*data_index));
                let (destination, source, length) = self.pop3();
                let args = [memory, segment, destination, source, length];
                self.service(Service::MemoryInit, &args);
            }
            Operator::DataDrop { data_index } => {
                let segment = self.index(*data_index);
                self.service(Service::DataDrop, &[segment]);
            }
            _ => return false,
        }
        true
    }

    fn is_memory64(&self, memory: u32) -> bool {
        self.module.info.memories[memory as usize].memory64
    }

    /// An index of an index space as an argument of a service.
    pub(super) fn index(&mut self, index: u32) -> Value {
        self.b.ins().iconst(types::I64, i64::from(index))
    }

    fn full_load(&mut self, memarg: &MemArg, ty: Type) {
        let index = self.pop();
        let (flags, address, offset) = self.address(memarg, index, ty.bytes() as u8);
        let value = self.b.ins().load(ty, flags, address, offset);
        self.push(value);
    }

    fn narrow_load(&mut self, memarg: &MemArg, narrow: Type, ty: Type, signed: bool) {
        let index = self.pop();
        let (flags, address, offset) = self.address(memarg, index, narrow.bytes() as u8);
        let value = match (narrow, signed) {
            (types::I8, false) => self.b.ins().uload8(ty, flags, address, offset),
            (types::I8, true) => self.b.ins().sload8(ty, flags, address, offset),
            (types::I16, false) => self.b.ins().uload16(ty, flags, address, offset),
            (types::I16, true) => self.b.ins().sload16(ty, flags, address, offset),
            (_, false) => self.b.ins().uload32(flags, address, offset),
            (_, true) => self.b.ins().sload32(flags, address, offset),
        };
        self.push(value);
    }

    fn store(&mut self, memarg: &MemArg, narrow: Option<Type>) {
        let (index, value) = self.pop2();
        let ty = narrow.unwrap_or_else(|| self.b.func.dfg.value_type(value));
        let (flags, address, offset) = self.address(memarg, index, ty.bytes() as u8);
        match narrow {
            None => self.b.ins().store(flags, value, address, offset),
            Some(types::I8) => self.b.ins().istore8(flags, value, address, offset),
            Some(types::I16) => self.b.ins().istore16(flags, value, address, offset),
            Some(_) => self.b.ins().istore32(flags, value, address, offset),
        };
    }
}
