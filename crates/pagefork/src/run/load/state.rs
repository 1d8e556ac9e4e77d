//! Words that code relies on: the header, sizes, lengths, what is dropped, and all references in
//! globals and tables.

use pagefork_layout::ABI_VERSION;
use pagefork_layout::module::{RefType, ValType};
use pagefork_layout::state;

use crate::run::load::exceptions::Blocks;
use crate::run::load::group::{Candidate, Group, Judged};

pub(super) fn check(group: &Group, ordinal: u32, blocks: &[Blocks]) -> Judged {
    let instance = &group.instances[ordinal as usize - 1];
    check_header(instance)?;
    check_sizes(instance)?;
    check_dropped(instance)?;
    let mut checked = Ok(());
    each_reference(instance, |ty, word| {
        if checked.is_ok() {
            checked = group.check_reference((ordinal, ordinal), ty, word, blocks);
        }
    });
    checked
}

fn check_header(instance: &Candidate) -> Judged {
    let (layout, below) = (instance.module.layout(), &instance.below);
    let word = |offset: i32| u32::from_le_bytes(below.at(offset.into()));
    let expected = [
        (state::LINK_OFFSET, layout.link_offset() as u32, "the link zone"),
        (state::CELLS_OFFSET, layout.cell(0) as u32, "the cells"),
        (state::ABI_OFFSET, ABI_VERSION, "the ABI"),
    ];
    match expected.into_iter().find(|(offset, expected, _)| word(*offset) != *expected) {
        Some((.., what)) => Err(format!("has another word for {what} in its header")),
        None => Ok(()),
    }
}

fn check_sizes(instance: &Candidate) -> Judged {
    let (parts, below) = (instance.module.layout().state_parts, &instance.below);
    for (size, index) in instance.sizes.iter().zip(0..) {
        if below.word(parts.memory_size(index).into()) != size.initial {
            return Err(format!("says of memory {index} that it has another size"));
        }
    }
    for (length, index) in instance.table_lengths.iter().zip(0..) {
        if below.word(parts.table_length(index).into()) != *length {
            return Err(format!("says of table {index} that it has another length"));
        }
    }
    Ok(())
}

fn check_dropped(instance: &Candidate) -> Judged {
    let (info, parts) = (instance.module.info(), instance.module.layout().state_parts);
    let segments = info.elements.len() + info.data.len();
    let dropped = instance.below.range(parts.dropped.into(), segments);
    match dropped.iter().position(|byte| *byte > 1) {
        Some(segment) => {
            Err(format!("says of segment {segment} neither that it is dropped nor not"))
        }
        None => Ok(()),
    }
}

/// Whether nothing of a suspended guest is in an instance's state.
pub(super) fn is_save_area_empty(instance: &Candidate) -> bool {
    let parts = instance.module.layout().state_parts;
    let save_area = instance.below.range(parts.save_area.into(), parts.save_size as usize);
    save_area.iter().all(|byte| *byte == 0)
}

/// Shows every reference that an instance's own globals and tables hold, with its type as the module
/// declares it.
pub(super) fn each_reference(instance: &Candidate, mut look: impl FnMut(RefType, u64)) {
    let (info, layout) = (instance.module.info(), instance.module.layout());
    let below = &instance.below;
    for (global, index) in info.globals.iter().skip(info.imported_globals as usize).zip(0..) {
        if let ValType::Ref(ty) = global.content {
            look(ty, below.word(layout.state_parts.global(index).into()));
        }
    }
    let own = info.tables.iter().skip(info.imported_tables as usize);
    for ((table, length), index) in own.zip(&instance.table_lengths).zip(0..) {
        for element in 0..*length {
            look(table.element, below.word(layout.table_element(index, element)));
        }
    }
}
