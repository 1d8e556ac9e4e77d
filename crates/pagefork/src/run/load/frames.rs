//! The stack of a suspended guest, from who is trusted: checked so that mistakes are errors, and
//! made one whose addresses are those of this process.

use std::time::Duration;

use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_layout::state::save::{self, Suspension};

use crate::run::enter;
use crate::run::load::group::{Candidate, Group, Judged};
use crate::store::frozen::FrozenCall;
use crate::store::record::{CallRecord, FrameRecord, FrameRecordWord};
use crate::store::suspended::{FrameWordKind, Suspended};

/// The suspended guest of a record.
pub(super) fn call(group: &Group, record: &CallRecord) -> Judged<FrozenCall> {
    let wrong = |what: &str| format!("the suspended guest {what}");
    let instance = group.candidate(record.ordinal);
    let instance = instance.ok_or_else(|| wrong("is in no instance"))?;
    let owner = group.candidate(record.stack_owner).ok_or_else(|| wrong("has no stack"))?;
    let kind = [Suspension::HostCall, Suspension::Interrupt]
        .into_iter()
        .find(|kind| *kind as u32 == record.kind)
        .ok_or_else(|| wrong("waits in nothing"))?;
    let function = FuncRef(record.function);
    let is_entered = function.ordinal() != HOST_ORDINAL
        && function
            .index()
            .is_some_and(|index| group.definition(function.ordinal(), index) == Some(function));
    if !is_entered {
        return Err(wrong("was entered by a function that is not there"));
    }
    check_host_function(group, instance, record, kind).map_err(|what| wrong(&what))?;

    let zone = &owner.module.layout().stack;
    let size = record.stack.len() as u64;
    if size > zone.end - zone.start || !size.is_multiple_of(8) {
        return Err(wrong("has more of a stack than there is"));
    }
    let parts = instance.module.layout().state_parts;
    let saved = |field: u32| instance.below.word(i64::from(parts.save_area) + i64::from(field));
    if saved(save::KIND) != kind as u64 || saved(save::SP) != size {
        return Err(wrong("has saved something else than its stack"));
    }
    let top_frame = record.frames.first().map(|frame| u64::from(frame.place));
    if top_frame != Some(saved(save::FP)) {
        return Err(wrong("has saved another frame pointer than its chain of frames begins with"));
    }
    check_chain(&record.frames, record.stack.len()).map_err(|what| wrong(&what))?;

    let mut stack = record.stack.clone();
    let (mut frame_pointers, mut frame_words) = (Vec::new(), Vec::new());
    for frame in &record.frames {
        let (value, kind) = match frame.word {
            FrameRecordWord::FramePointer(to) => {
                frame_pointers.extend(to.map(|to| (frame.place, to)));
                (0, FrameWordKind::FramePointer(to.map(u64::from)))
            }
            FrameRecordWord::Return { ordinal, piece, call_site } => {
                let at = return_address(group, ordinal, piece, call_site);
                let (code, offset) =
                    at.ok_or_else(|| wrong("returns to where nothing was called"))?;
                (code + offset as usize, FrameWordKind::ReturnAddress { ordinal, offset })
            }
            FrameRecordWord::ReturnToHost => (enter::entered(), FrameWordKind::ReturnToHost),
        };
        let at = stack.len() - frame.place as usize;
        stack[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
        frame_words.push((frame.place, kind));
    }
    Ok(FrozenCall {
        suspended: Suspended {
            ordinal: record.ordinal,
            stack_owner: record.stack_owner,
            kind,
            function,
            host_function: record.host_function,
            rest: record.rest_ns.map(Duration::from_nanos),
            of_task: false,
        },
        stack: stack.into(),
        frame_pointers: frame_pointers.into(),
        frame_words: frame_words.into(),
    })
}

/// A host function that is to be called has its arguments in the save area, and its results later.
fn check_host_function(
    group: &Group,
    instance: &Candidate,
    record: &CallRecord,
    kind: Suspension,
) -> Judged {
    let Some(index) = record.host_function else { return Ok(()) };
    let Some(function) = group.host_functions.get(index as usize) else {
        return Err("is about to call a function of the host that is not there".to_owned());
    };
    let cells = instance.module.layout().link_parts.cell_count as usize;
    let needed = function.ty.params.len().max(function.ty.results.len());
    match kind == Suspension::HostCall && needed <= cells {
        true => Ok(()),
        false => Err("is about to call a function of the host, and cannot".to_owned()),
    }
}

/// Each frame lies above the one before, within the stack, and the last is the one that the guest was
/// entered by.
///
/// ```text
///  place - 8   return address
///  place       frame pointer of the caller: its place, which is smaller
/// ```
fn check_chain(frames: &[FrameRecord], size: usize) -> Judged {
    let (pairs, rest) = frames.as_chunks::<2>();
    let mut expected: Option<u32> = None;
    let mut last: Option<u32> = None;
    if !rest.is_empty() || pairs.is_empty() {
        return Err("has no chain of frames".to_owned());
    }
    for (index, [pointer, address]) in pairs.iter().enumerate() {
        let place = pointer.place;
        let rises = last.is_none_or(|last| place.checked_add(16).is_some_and(|end| end <= last));
        let follows = expected.is_none_or(|expected| expected == place);
        if !rises
            || !follows
            || place < 16
            || place as usize > size
            || !place.is_multiple_of(8)
            || address.place != place - 8
        {
            return Err("has a frame pointer that does not rise within its stack".to_owned());
        }
        let is_last = index + 1 == pairs.len();
        match (pointer.word, address.word) {
            (FrameRecordWord::FramePointer(Some(to)), FrameRecordWord::Return { .. })
                if !is_last =>
            {
                expected = Some(to);
            }
            (FrameRecordWord::FramePointer(None), FrameRecordWord::ReturnToHost)
                if is_last && place == 16 => {}
            _ => {
                return Err(
                    "has a chain of frames that does not end where it was entered".to_owned()
                );
            }
        }
        last = Some(place);
    }
    Ok(())
}

/// Where the code lies of the instance `ordinal`, and the offset in it that a call returns to, if
/// there is that call.
fn return_address(group: &Group, ordinal: u32, piece: u32, call_site: u32) -> Option<(usize, u32)> {
    let module = &group.candidate(ordinal)?.module;
    let piece = module.code().functions.get(piece as usize)?;
    let call_sites = module.call_sites();
    let first = call_sites.partition_point(|site| *site <= piece.start);
    let behind = call_sites.get(first.checked_add(call_site as usize)?)?;
    (behind.checked_sub(piece.start)? <= piece.size).then(|| (module.code_memory().start(), behind))
}
