//! Tables and references.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, types};
use pagefork_layout::link::Service;
use pagefork_layout::module::ValType;
use pagefork_layout::reference::FuncRef;
use pagefork_layout::trap::TrapCode;
use wasmparser::Operator;

use super::Translator;

impl Translator<'_> {
    pub(super) fn table(&mut self, op: &Operator<'_>) -> bool {
        match op {
            Operator::RefNull { .. } => {
                let null = self.b.ins().iconst(types::I64, FuncRef::NULL.0 as i64);
                self.push(null);
            }
            Operator::RefFunc { function_index } => {
                let reference = FuncRef::new(0, *function_index).0;
                let reference = self.b.ins().iconst(types::I64, reference as i64);
                self.push(reference);
            }
            Operator::RefIsNull => {
                let reference = self.pop();
                let null = self.b.ins().icmp_imm_u(IntCC::Equal, reference, 0);
                let null = self.b.ins().uextend(types::I32, null);
                self.push(null);
            }
            Operator::RefAsNonNull => {
                let reference = *self.stack.last().expect("validation keeps the stack balanced");
                let null = self.b.ins().icmp_imm_u(IntCC::Equal, reference, 0);
                self.trap_if(null, TrapCode::NullReference);
            }
            Operator::TableGet { table } => {
                let index = self.pop();
                let place = self.element_place(*table, index);
                let element = self.load_element(*table, place);
                self.push(element);
            }
            Operator::TableSet { table } => {
                let (index, mut value) = self.pop2();
                if self.leaves(*table) {
                    value = self.absolute(value);
                }
                let place = self.element_place(*table, index);
                self.store_element(place, value);
            }
            Operator::TableSize { table } => {
                let length = self.table_length(*table);
                let length = self.as_index(length, self.is_table64(*table));
                self.push(length);
            }
            Operator::TableGrow { table } => {
                let (element, delta) = self.pop2();
                let ty = if self.is_table64(*table) { types::I64 } else { types::I32 };
                let table = self.index(*table);
                self.service(Service::TableGrow, &[table, element, delta]);
                let old = self.load_cell(0, ty);
                self.push(old);
            }
            Operator::TableFill { table } => {
                let table = self.index(*table);
                let (destination, element, length) = self.pop3();
                self.service(Service::TableFill, &[table, destination, element, length]);
            }
            Operator::TableCopy { dst_table, src_table } => {
                let (to, from) = (self.index(*dst_table), self.index(*src_table));
                let (destination, source, length) = self.pop3();
                self.service(Service::TableCopy, &[to, from, destination, source, length]);
            }
            Operator::TableInit { elem_index, table } => {
                let (table, segment) = (self.index(*table), self.index(*elem_index));
                let (destination, source, length) = self.pop3();
                let args = [table, segment, destination, source, length];
                self.service(Service::TableInit, &args);
            }
            Operator::ElemDrop { elem_index } => {
                let segment = self.index(*elem_index);
                self.service(Service::ElementDrop, &[segment]);
            }
            _ => return false,
        }
        true
    }

    fn is_table64(&self, table: u32) -> bool {
        self.module.info.tables[table as usize].table64
    }

    /// Whether elements of this table belong to another owner.
    fn leaves(&self, table: u32) -> bool {
        let info = self.module.info;
        table < info.imported_tables
            && ValType::Ref(info.tables[table as usize].element).has_owner()
    }
}
