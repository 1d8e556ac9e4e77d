//! What the kernel offers programs that manage pages, as they use it: what Pagefork is compared with.

mod confine;
mod locks;
mod mapping;
mod misses;
mod pagemap;
mod readers;
mod signals;
mod userfault;

pub(crate) use confine::{Refusal, become_nobody, refuse};
pub(crate) use locks::{LockWaits, lock_waits_are_counted};
pub(crate) use mapping::{Access, Mapping, PAGE};
pub(crate) use misses::CacheMisses;
pub(crate) use pagemap::{PageMap, Pages};
pub(crate) use readers::{Readers, Serve};
pub(crate) use signals::{Handled, count_signals, handle_signals, signal_count};
pub(crate) use userfault::{Delivery, Events, Mode, Userfault, userfaults_are_told};
