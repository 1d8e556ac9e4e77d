//! The bytes that an instance starts with, and the steps that each spawn has to take.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pagefork_layout::ABI_VERSION;
use pagefork_layout::code::CodeImage;
use pagefork_layout::image::InitialImage;
use pagefork_layout::module::{self, ConstExpr, ModuleInfo, SegmentMode};
use pagefork_layout::page::{PAGE_SIZE, WASM_PAGE_SIZE};
use pagefork_layout::reference::FuncRef;
use pagefork_layout::slot::SlotLayout;
use pagefork_layout::state;
use pagefork_layout::trap::TrapCode;

use crate::base::module::CompiledModule;

/// How an instance comes to be: the pages it starts with, and what cannot be in
/// pages because it concerns other instances.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Instantiation {
    /// Tables, state and memory as they start.
    pub image: InitialImage,
    /// What is to be done at each spawn, in this order, before `start`.
    pub steps: Vec<SpawnStep>,
}

/// Something to be done at each spawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpawnStep {
    /// Set the module's own global (an index of the global index space): its
    /// initial value is an imported reference.
    Global {
        /// Which.
        global: u32,
    },
    /// Fill the module's own table (an index of the table index space) with its
    /// initial value, which is an imported reference.
    Table {
        /// Which.
        table: u32,
    },
    /// Copy an active element segment: its table is imported, or it holds an
    /// imported reference.
    Elements {
        /// Which segment.
        segment: u32,
        /// Where to, in elements. Not yet checked against the table's length.
        offset: u64,
    },
    /// Copy an active data segment into an imported memory.
    Data {
        /// Which segment.
        segment: u32,
        /// Where to, in bytes. Not yet checked against the memory's size.
        offset: u64,
    },
    /// A segment does not fit: the instantiation traps.
    Trap(TrapCode),
}

/// The initial image of a module. `behind` is what lies behind its code
/// ([`CodeImage::behind`](pagefork_layout::code::CodeImage::behind)), wherever that is.
///
/// `imported_globals` has the bits of each imported global that is a number, and
/// `None` for references.
///
/// # Panics
/// If `imported_globals` is shorter than the list of imported globals, or `behind` is
/// another module's.
pub fn initial_image(
    module: &CompiledModule,
    behind: &[u8],
    imported_globals: &[Option<u128>],
) -> Instantiation {
    let CompiledModule { info, layout, code } = module;
    let (globals, pages) = (Vec::new(), BTreeMap::new());
    let mut writer = ImageWriter { info, layout, code, behind, imported_globals, globals, pages };
    let mut steps = Vec::new();
    writer.header();
    writer.globals(&mut steps);
    // Once a table is written at spawn, later segments must come later too.
    let mut at_spawn = vec![false; info.tables.len()];
    writer.tables(&mut steps, &mut at_spawn);
    // Element segments come first, then data segments, and nothing after the
    // first that does not fit.
    let _ = writer.elements(&mut steps, at_spawn).is_some() && writer.data(&mut steps).is_some();
    Instantiation { image: writer.finish(), steps }
}

struct ImageWriter<'a> {
    info: &'a ModuleInfo,
    layout: &'a SlotLayout,
    code: &'a CodeImage,
    behind: &'a [u8],
    imported_globals: &'a [Option<u128>],
    /// The values of the module's own globals, as far as they are known.
    globals: Vec<Option<u128>>,
    /// Pages that are not all zero, by page index relative to the base.
    pages: BTreeMap<i64, Box<[u8]>>,
}

impl ImageWriter<'_> {
    fn header(&mut self) {
        let (info, parts) = (self.info, self.layout.state_parts);
        self.write(state::LINK_OFFSET.into(), &self.layout.link_offset().to_le_bytes());
        self.write(state::CELLS_OFFSET.into(), &self.layout.cell(0).to_le_bytes());
        self.write(state::ABI_OFFSET.into(), &ABI_VERSION.to_le_bytes());
        for (i, memory) in info.memories[info.imported_memories as usize..].iter().enumerate() {
            let size = memory.minimum.saturating_mul(WASM_PAGE_SIZE);
            self.write(parts.memory_size(i as u32).into(), &size.to_le_bytes());
        }
        for (i, table) in info.tables[info.imported_tables as usize..].iter().enumerate() {
            self.write(parts.table_length(i as u32).into(), &table.minimum.to_le_bytes());
        }
    }

    fn globals(&mut self, steps: &mut Vec<SpawnStep>) {
        for (own, init) in self.info.global_inits.iter().enumerate() {
            // Validation lets an initialiser name earlier globals only.
            let value = self.evaluate(init);
            self.globals.push(value);
            match value {
                Some(bits) => {
                    let offset = self.layout.state_parts.global(own as u32);
                    self.write(offset.into(), &bits.to_le_bytes());
                }
                None => steps
                    .push(SpawnStep::Global { global: self.info.imported_globals + own as u32 }),
            }
        }
    }

    fn tables(&mut self, steps: &mut Vec<SpawnStep>, at_spawn: &mut [bool]) {
        for (own, init) in self.info.table_inits.iter().enumerate() {
            let Some(init) = init else { continue };
            let table = self.info.imported_tables + own as u32;
            match self.evaluate(init) {
                Some(value) => {
                    for element in 0..self.info.tables[table as usize].minimum {
                        let at = self.layout.table_element(own as u32, element);
                        self.write(at, &(value as u64).to_le_bytes());
                    }
                }
                None => {
                    at_spawn[table as usize] = true;
                    steps.push(SpawnStep::Table { table });
                }
            }
        }
    }

    /// `None` if a segment does not fit.
    fn elements(&mut self, steps: &mut Vec<SpawnStep>, mut at_spawn: Vec<bool>) -> Option<()> {
        for (segment, elements) in self.info.elements.iter().enumerate() {
            match &elements.mode {
                SegmentMode::Passive => continue,
                SegmentMode::Declared => {}
                SegmentMode::Active { target, offset } => {
                    let target = *target;
                    let table = self.info.tables[target as usize];
                    let offset = self.offset(offset, table.table64);
                    let own = target.checked_sub(self.info.imported_tables);
                    let values: Option<Vec<u128>> =
                        elements.items.iter().map(|item| self.evaluate(item)).collect();
                    match (own, values) {
                        (Some(own), Some(values)) if !at_spawn[target as usize] => {
                            let end = offset.checked_add(values.len() as u64);
                            if end.is_none_or(|end| end > table.minimum) {
                                steps.push(SpawnStep::Trap(TrapCode::TableOutOfBounds));
                                return None;
                            }
                            for (value, element) in values.into_iter().zip(offset..) {
                                let at = self.layout.table_element(own, element);
                                self.write(at, &(value as u64).to_le_bytes());
                            }
                        }
                        _ => {
                            at_spawn[target as usize] = true;
                            steps.push(SpawnStep::Elements { segment: segment as u32, offset });
                        }
                    }
                }
            }
            let dropped = self.layout.state_parts.dropped_element(segment as u32);
            self.write(dropped.into(), &[1]);
        }
        Some(())
    }

    /// `None` if a segment does not fit.
    fn data(&mut self, steps: &mut Vec<SpawnStep>) -> Option<()> {
        for (segment, data) in self.info.data.iter().enumerate() {
            let SegmentMode::Active { target, offset } = &data.mode else { continue };
            let (target, memory) = (*target, self.info.memories[*target as usize]);
            let offset = self.offset(offset, memory.memory64);
            if let Some(own) = target.checked_sub(self.info.imported_memories) {
                // Where there is no room for the memory, no instance is made.
                let room = self.layout.memories[own as usize].reservation;
                let size = memory.minimum.saturating_mul(WASM_PAGE_SIZE).min(room);
                let bytes = self.code.segment(self.behind, &data);
                let end = offset.checked_add(bytes.len() as u64);
                if end.is_none_or(|end| end > size) {
                    steps.push(SpawnStep::Trap(TrapCode::MemoryOutOfBounds));
                    return None;
                }
                self.write(self.layout.memory_byte(own, offset), bytes);
            } else {
                steps.push(SpawnStep::Data { segment: segment as u32, offset });
            }
            let dropped = self.layout.state_parts.dropped_data(self.info, segment as u32);
            self.write(dropped.into(), &[1]);
        }
        Some(())
    }

    /// The bits of a constant expression; `None` if it is an imported reference.
    fn evaluate(&self, expr: &ConstExpr) -> Option<u128> {
        match expr {
            ConstExpr::Bits(bits) => Some(*bits),
            ConstExpr::Null => Some(0),
            ConstExpr::Func(index) => Some(FuncRef::new(0, *index).0.into()),
            ConstExpr::Global(index) => self.global(*index),
            ConstExpr::Extended(steps) => {
                let global = |index| self.global(index).map(|bits| bits as u64);
                module::evaluate(steps, global).map(u128::from)
            }
        }
    }

    /// The bits of a global; `None` if it is an imported reference.
    fn global(&self, index: u32) -> Option<u128> {
        match index.checked_sub(self.info.imported_globals) {
            None => self.imported_globals[index as usize],
            Some(own) => self.globals[own as usize],
        }
    }

    fn offset(&self, expr: &ConstExpr, wide: bool) -> u64 {
        let bits = self.evaluate(expr).expect("an offset is a number");
        if wide { bits as u64 } else { u64::from(bits as u32) }
    }

    /// Puts bytes at an offset from the base.
    fn write(&mut self, mut at: i64, mut bytes: &[u8]) {
        let page_size = PAGE_SIZE as i64;
        while !bytes.is_empty() {
            let (page, start) = (at.div_euclid(page_size), at.rem_euclid(page_size) as usize);
            let (now, later) = bytes.split_at(bytes.len().min(PAGE_SIZE as usize - start));
            match self.pages.entry(page) {
                Entry::Occupied(mut entry) => {
                    entry.get_mut()[start..][..now.len()].copy_from_slice(now)
                }
                Entry::Vacant(entry) => {
                    if now.iter().any(|byte| *byte != 0) {
                        let page = entry.insert(vec![0; PAGE_SIZE as usize].into());
                        page[start..][..now.len()].copy_from_slice(now);
                    }
                }
            }
            at += now.len() as i64;
            bytes = later;
        }
    }

    fn finish(self) -> InitialImage {
        let mut runs: Vec<(i64, Vec<u8>)> = Vec::new();
        for (page, bytes) in self.pages {
            let at = page * PAGE_SIZE as i64;
            match runs.last_mut() {
                Some((start, run)) if *start + run.len() as i64 == at => run.extend(&bytes),
                _ => runs.push((at, bytes.into())),
            }
        }
        InitialImage { runs }
    }
}
