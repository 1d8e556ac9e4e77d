//! What a slot knows of its last snapshot, so that the next costs what was written since.
//!
//! ```text
//!  last snapshot     | a | b | c |   | d |          private then: a b c d
//!  now               | a | B |   | e | d |          private now: a B e d; c was discarded
//!  written since           B       e                as the kernel noted it
//!  looked at               B   c   e                written, and private then but not now
//! ```
//!
//! Of a page that is private neither then nor now the slot has the image's bytes both times. Without
//! the kernel's notes every page that is private now counts as written.

use std::ops::Range;
use std::sync::{Arc, Weak};

use pagefork_layout::page::{PAGE_SIZE, joined, without};

use crate::image::Image;
use crate::os::error::PagesError;
use crate::os::features::HostFeatures;
use crate::os::pagemap::{Finder, Method};
use crate::os::pagemap_scan::{PageRegion, WRITTEN};
use crate::os::write_watch::notes_writes;
use crate::pages::faulted_pages::FaultedPages;
use crate::pages::guarded_pages::GuardedPages;
use crate::pages::slot_pages::SlotPages;
use crate::pages::watched_pages::WatchedPages;
use crate::strategy::config::DeltaTracker;
use crate::strategy::writers::ExternalWriter;

/// Room for this many runs of private pages at first: as many as the kernel finds at once.
const REGIONS: usize = 512;

/// Runs of written pages are looked at together that lie as near: to look at what lies between takes less than a call.
const GAP: u64 = 16 * PAGE_SIZE;

/// More runs of written pages are not looked at one by one.
const RUNS_MAX: usize = 64;

/// What a slot knows of its last snapshot.
#[derive(Debug)]
pub(super) struct Deltas {
    asked: DeltaTracker,
    last: Option<LastSnapshot>,
    /// Invariant: there is one if pages of the slot are registered.
    watched: Option<WatchedPages>,
    /// Invariant: there is one if pages of the slot are read-only. What was written since the last
    /// snapshot counts as written in it.
    guarded: Option<GuardedPages>,
    /// Invariant: there is one if pages of the slot raise signals when they are written. Those that it
    /// has unwritten are as they were in the last snapshot.
    faulted: Option<FaultedPages>,
    exposed: Exposed,
}

/// Whether somebody may write to the slot who takes no signal, and announces no single write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Exposed {
    #[default]
    No,
    UntilReset,
    ForGood,
}

/// A snapshot that was taken of what is in the slot, which has run on since.
#[derive(Debug)]
struct LastSnapshot {
    /// Who took it may have given it up: then there is nothing to be a delta of.
    image: Weak<Image>,
    /// Slot offsets of the pages that were private: ascending, apart.
    private: Vec<Range<u64>>,
    /// Slot offsets of pages that the image has otherwise than the slot had.
    patched: Vec<Range<u64>>,
}

/// What a slot has to be compared with, and which of its pages.
pub(super) struct Candidates {
    /// The last snapshot, if the slot was not reset since.
    pub(super) last: Option<Arc<Image>>,
    /// Slot offsets of pages that can be otherwise than in that, or else than in the slot's
    /// image: ascending, apart, all accessible.
    pub(super) ranges: Vec<Range<u64>>,
    /// They were written since the last snapshot, as far as is known, and not only private.
    pub(super) are_written: bool,
    private: Vec<Range<u64>>,
}

impl Deltas {
    pub(super) fn new(asked: DeltaTracker) -> Self {
        let (watched, guarded, faulted) = (None, None, None);
        Self { asked, last: None, watched, guarded, faulted, exposed: Exposed::No }
    }

    /// What the next snapshot does of what was asked for, as far as it is known.
    pub(super) fn tracker(&self, pages: &SlotPages) -> Result<DeltaTracker, PagesError> {
        let possible = self.possible(pages)?;
        // What was written before it is tracked counts as written.
        match self.last.is_none() || self.tracks(possible, pages) {
            true => Ok(possible),
            false => Ok(DeltaTracker::Compare),
        }
    }

    /// Whether it was noted of some page since the last snapshot that it was not written.
    fn tracks(&self, tracker: DeltaTracker, pages: &SlotPages) -> bool {
        let (watched, guarded, faulted) = (&self.watched, &self.guarded, &self.faulted);
        match tracker {
            DeltaTracker::Off | DeltaTracker::Compare => true,
            DeltaTracker::Writes => watched.as_ref().is_some_and(WatchedPages::is_begun),
            DeltaTracker::Protect => {
                guarded.as_ref().is_some_and(|guarded| guarded.written(pages, &[]).is_some())
            }
            DeltaTracker::Fault => {
                faulted.as_ref().is_some_and(|faulted| faulted.unwritten(pages).is_some())
            }
        }
    }

    /// What this machine can do of what was asked for.
    fn possible(&self, pages: &SlotPages) -> Result<DeltaTracker, PagesError> {
        let method = method(false)?;
        let scans = matches!(method, Some(Method::Scan { .. }));
        Ok(match self.asked {
            DeltaTracker::Off => DeltaTracker::Off,
            // A map is registered with one userfaultfd alone, and that of absent pages is first.
            _ if pages.image().is_incomplete() => DeltaTracker::Compare,
            DeltaTracker::Writes if !scans || !notes_writes() || pages.serves_image() => {
                DeltaTracker::Compare
            }
            DeltaTracker::Fault
                if (method.is_none() && !FaultedPages::are_possible_unseen())
                    || self.exposed != Exposed::No
                    || !FaultedPages::are_possible()
                    || !FaultedPages::are_possible_in(pages) =>
            {
                DeltaTracker::Compare
            }
            DeltaTracker::Protect
                if self.exposed != Exposed::No || !GuardedPages::are_possible() =>
            {
                DeltaTracker::Compare
            }
            asked => asked,
        })
    }

    /// The pages that can be otherwise than in the last snapshot. What was known of that is given
    /// up; with [`Self::note`] the next one is known.
    ///
    /// # Errors
    /// If the kernel does not tell what is private though it has before.
    pub(super) fn candidates(&mut self, pages: &SlotPages) -> Result<Candidates, PagesError> {
        let before = self.last.take();
        let tracker = self.possible(pages)?;
        // What memories have grown by in files or by faults counts as private and as written, as far as
        // it was touched.
        let grown = pages.grown(method(false)?)?;
        let parts = || pages.private_image_parts();
        let guarded = self.guarded.as_ref();
        let guarded_written =
            guarded.and_then(|guarded| guarded.written(pages, &parts().collect::<Vec<_>>()));
        let mut unwritten = self.faulted.as_ref().and_then(|faulted| faulted.unwritten(pages));
        let known = before.and_then(|before| Some((before.image.upgrade()?, before)));
        let Some(of_image) = method(pages.copies_image())? else {
            let of_faults = unwritten.map(|unwritten| {
                let parts: Vec<_> = parts().collect();
                without(&parts, &unwritten)
            });
            let written = guarded_written.or(of_faults);
            let are_written = known.is_some() && written.is_some() && grown.is_empty();
            let (last, ranges) = match (known, written) {
                (Some((last, before)), Some(written)) => {
                    (Some(last), written.into_iter().chain(before.patched).chain(grown).collect())
                }
                (known, _) => (known.map(|(last, _)| last), parts().chain(grown).collect()),
            };
            let (private, ranges) = (Vec::new(), joined(ranges));
            return Ok(Candidates { last, private, ranges, are_written });
        };
        let watches = tracker == DeltaTracker::Writes && self.watch(pages);
        // What is the shared page of zeros now, and was not private then, has been zero all along,
        // also where an image was copied.
        let of_last = match self.asked {
            DeltaTracker::Off => of_image,
            // What is private no more may have been so then.
            _ if pages.serves_image() => of_image,
            _ => method(false)?.unwrap_or(of_image),
        };
        let start = pages.start() as u64;
        let offsets = |region: &PageRegion| region.start - start..region.end - start;
        // The kernel need not say of pages that are not registered, as those that a memory has grown by, that they
        // were written.
        let are_registered = || {
            let parts: Vec<_> = parts().collect();
            let is_of = self.faulted.as_ref().is_some_and(|faulted| faulted.is_of(pages, &parts));
            is_of && matches!(of_last, Method::Scan { .. })
        };
        // Where the image is served a page becomes private when it is only read.
        let found = match (&known, &guarded_written, &unwritten) {
            (Some((_, before)), ..) if watches => {
                Some(find_written(pages, of_last, &before.private, true)?)
            }
            _ if pages.serves_image() => None,
            (Some((_, before)), Some(written), _) if written.len() <= RUNS_MAX => {
                Some(find_lifted(pages, of_last, &before.private, written)?)
            }
            (Some((_, before)), None, Some(still)) if are_registered() => {
                let still = common(&before.private, still);
                Some(find_written(pages, of_last, &still, false)?)
            }
            _ => None,
        };
        let (regions, kept) = match found {
            Some((regions, kept)) => {
                unwritten = unwritten.map(|_| kept.clone());
                (regions, kept)
            }
            None => {
                let regions = find(pages, of_last, watches)?;
                // The kernel can have lost a page's protection without a write to it, and the next one is not noted.
                let is_protected = |region: &&PageRegion| region.categories & WRITTEN == 0;
                let protected = joined(regions.iter().filter(is_protected).map(offsets).collect());
                unwritten = unwritten.map(|unwritten| common(&unwritten, &protected));
                (regions, Vec::new())
            }
        };
        let found = regions.iter().map(offsets).chain(kept);
        let private = joined(found.chain(grown.iter().cloned()).collect());
        let Some((last, before)) = known else {
            let mut ranges = match of_last == of_image {
                true => private.clone(),
                false => {
                    let found = find(pages, of_image, false)?;
                    found.iter().map(offsets).chain(grown.iter().cloned()).collect()
                }
            };
            // A copy that the kernel has made the page of zeros of does not count as private.
            ranges.extend(pages.differing_pages().map(of_page));
            let (ranges, are_written) = (joined(ranges), false);
            return Ok(Candidates { last: None, ranges, are_written, private });
        };
        let is_written = |region: &&PageRegion| !watches || region.categories & WRITTEN != 0;
        let mut ranges: Vec<_> = regions.iter().filter(is_written).map(offsets).collect();
        let are_written = (watches || guarded_written.is_some() || unwritten.is_some())
            // It is touched, and no more is known of it.
            && grown.is_empty();
        if let Some(written) = guarded_written {
            let found = joined(ranges);
            ranges = without(&found, &without(&found, &written));
        }
        if let Some(unwritten) = unwritten {
            ranges = without(&joined(ranges), &unwritten);
        }
        ranges.extend(grown);
        ranges.extend(without(&before.private, &private));
        ranges.extend(before.patched);
        Ok(Candidates { last: Some(last), ranges: joined(ranges), are_written, private })
    }

    /// Says that what the slot has now is in `image`, but for the pages `patched`.
    pub(super) fn note(
        &mut self,
        pages: &SlotPages,
        image: &Arc<Image>,
        candidates: Candidates,
        patched: Vec<Range<u64>>,
    ) {
        if self.asked != DeltaTracker::Off {
            let (image, private) = (Arc::downgrade(image), candidates.private);
            self.last = Some(LastSnapshot { image, private, patched });
        }
        self.guard(pages);
        self.fault(pages);
    }

    /// Write-protects the pages that are private, if that is what was asked for: what is written from
    /// now on is noticed. Where it cannot be done, pages are compared.
    fn fault(&mut self, pages: &SlotPages) {
        if self.asked != DeltaTracker::Fault {
            return;
        }
        if self.possible(pages) != Ok(DeltaTracker::Fault) {
            return self.end_faults();
        }
        let parts: Vec<_> = pages.private_image_parts().collect();
        if !self.faulted.as_ref().is_some_and(|known| known.is_of(pages, &parts)) {
            self.end_faults();
            if self.faulted.is_none() {
                // SAFETY: slots drop it first, and end it before each reset, which alone puts other
                // maps in their place.
                self.faulted = unsafe { FaultedPages::new(pages, &parts) };
            }
        }
        let private = match (method(false), &self.last) {
            (Ok(Some(_)), Some(last)) => &last.private,
            // Where nothing tells what is private all is protected.
            _ => &parts,
        };
        if let Some(faulted) = &mut self.faulted
            && !faulted.protect(pages, &parts, private)
        {
            self.end_faults();
        }
    }

    /// Makes all writable. If the kernel refuses, all count as written, and the handler of SIGBUS
    /// lifts the protection of each page.
    fn end_faults(&mut self) {
        self.faulted.take_if(|faulted| faulted.end().is_ok());
    }

    /// Makes pages read-only, if that is what was asked for: what is written from now on is noticed.
    /// Where it cannot be done, pages are compared.
    fn guard(&mut self, pages: &SlotPages) {
        if self.asked != DeltaTracker::Protect {
            return;
        }
        let is_guarded = self.possible(pages) == Ok(DeltaTracker::Protect);
        let parts: Vec<_> = pages.private_image_parts().collect();
        if is_guarded && self.guarded.as_ref().is_some_and(|known| known.protect(pages, &parts)) {
            return;
        }
        self.end_guard();
        if is_guarded && self.guarded.is_none() {
            // SAFETY: slots drop it first, and end it before each reset, which alone puts other maps
            // in their place. Processes that are forked have the pages, as none is absent.
            self.guarded = unsafe { GuardedPages::new(pages, &parts) };
        }
    }

    /// Makes all writable. If the kernel refuses, all count as written, and the handler of SIGSEGV
    /// tries it again.
    fn end_guard(&mut self) {
        self.guarded.take_if(|guarded| guarded.end().is_ok());
    }

    /// Says that somebody who takes no signal is about to write to these slot offsets.
    pub(super) fn note_write(&self, pages: &SlotPages, range: Range<u64>) {
        if let Some(guarded) = &self.guarded {
            guarded.lift(pages, range.clone());
        }
        if let Some(faulted) = &self.faulted {
            faulted.lift(pages, range);
        }
    }

    /// Says that somebody who takes no signal may write anywhere from now on: nothing is read-only
    /// then.
    pub(super) fn expose(&mut self, writer: ExternalWriter) {
        let exposed = match writer {
            ExternalWriter::UntilReset => Exposed::UntilReset,
            ExternalWriter::ForGood => Exposed::ForGood,
        };
        self.exposed = self.exposed.max(exposed);
        self.end_guard();
        self.end_faults();
    }

    /// Has the kernel note what is written to all pages that images hold. Whether it does: if the
    /// kernel refuses, or too few maps are left, pages are compared as they are where it cannot.
    fn watch(&mut self, pages: &SlotPages) -> bool {
        let start = pages.start() as u64;
        let parts: Vec<_> =
            pages.private_image_parts().map(|part| start + part.start..start + part.end).collect();
        // Of a process that this one was forked from nothing is registered here.
        self.watched.take_if(|watched| !watched.is_of_this_process());
        match &mut self.watched {
            // Memories may have grown.
            Some(watched) => watched.reach(parts),
            None => {
                self.watched = WatchedPages::new(parts);
                self.watched.as_ref().is_some_and(WatchedPages::is_complete)
            }
        }
    }

    /// Forgets the last snapshot, and has the kernel note nothing more: before pages are given
    /// back or restored, since where noted pages of a file were discarded the kernel leaves marks
    /// that look like swapped pages.
    ///
    /// # Errors
    /// If the kernel does not end it. The last snapshot is known still then, and what was written since
    /// is, or all counts as written.
    #[inline]
    pub(super) fn end(&mut self) -> Result<(), PagesError> {
        let notes = self.watched.is_some() || self.guarded.is_some() || self.faulted.is_some();
        if notes || self.last.is_some() {
            self.end_noting()?;
        }
        if self.exposed == Exposed::UntilReset {
            self.exposed = Exposed::No;
        }
        Ok(())
    }

    /// As [`Self::end`], where there is something to end.
    #[cold]
    fn end_noting(&mut self) -> Result<(), PagesError> {
        if let Some(watched) = &mut self.watched {
            watched.unregister()?;
        }
        if let Some(guarded) = &self.guarded {
            guarded.end()?;
        }
        if let Some(faulted) = &self.faulted {
            faulted.end()?;
        }
        (self.last, self.watched, self.guarded, self.faulted) = (None, None, None, None);
        Ok(())
    }
}

impl Drop for Deltas {
    fn drop(&mut self) {
        // A part of the address space may go on to guard another slot. If it fails there, nothing
        // is wrong with that: nothing is ever written to a guard.
        let _ = self.end();
    }
}

/// How private pages of a slot are found; `None` if nothing tells. With `zeros` the shared page of
/// zeros has to count as private.
fn method(zeros: bool) -> Result<Option<Method>, PagesError> {
    let features = HostFeatures::get()?;
    // Where discarding does nothing, the page map proves nothing either.
    Ok(features.search_method(zeros).filter(|_| features.discard))
}

/// The private pages of all that images hold; with `watches` also which of them were written since
/// they were last found so.
fn find(pages: &SlotPages, method: Method, watches: bool) -> Result<Vec<PageRegion>, PagesError> {
    let start = pages.start() as u64;
    let (mut finder, mut regions) = (Finder::new(method)?, Vec::with_capacity(REGIONS));
    for part in pages.private_image_parts() {
        let part = start + part.start..start + part.end;
        match watches {
            true => finder.find_and_watch(part, &mut regions)?,
            false => finder.find(part, &mut regions)?,
        }
    }
    Ok(regions)
}

/// The private pages of a slot of which all pages were read-only since private ones were found last, as `before`
/// says, but for `written`: those among the latter, and slot offsets of the others. What was not written is private if it was so.
fn find_lifted(
    pages: &SlotPages,
    method: Method,
    before: &[Range<u64>],
    written: &[Range<u64>],
) -> Result<(Vec<PageRegion>, Vec<Range<u64>>), PagesError> {
    let start = pages.start() as u64;
    let (mut finder, mut regions) = (Finder::new(method)?, Vec::with_capacity(REGIONS));
    for range in written {
        finder.find(start + range.start..start + range.end, &mut regions)?;
    }
    let parts: Vec<_> = pages.private_image_parts().collect();
    Ok((regions, without(&common(before, &parts), written)))
}

/// Of a slot whose pages are write-protected since private ones were found last, as `before` says: those that were
/// written since, as [`find`] gives them, perhaps with others that were not; and slot offsets of those of `before` that
/// were not written. They are private still: nothing that an image lies below is given back while it is noted what is
/// written, and where signals note that, `before` has no page that was given back.
///
/// The kernel says of all pages whether they were written in a fifteenth of the time that it takes to say which ones
/// are private, so only what was written is asked for that. What was only read, of a file, is watched from the second
/// time on if `watches`: else it would count as written each time. Where signals note what is written it does, since
/// protection would be a signal at its first write.
fn find_written(
    pages: &SlotPages,
    method: Method,
    before: &[Range<u64>],
    watches: bool,
) -> Result<(Vec<PageRegion>, Vec<Range<u64>>), PagesError> {
    let start = pages.start() as u64;
    let (mut finder, mut present) = (Finder::new(method)?, Vec::with_capacity(REGIONS));
    let is_written = |region: &&PageRegion| region.categories & WRITTEN != 0;
    let mut runs: Vec<(Range<u64>, u64)> = Vec::new();
    for part in pages.private_image_parts() {
        let known = present.len();
        finder.find_present(start + part.start..start + part.end, &mut present)?;
        for region in present[known..].iter().filter(is_written) {
            let size = region.end - region.start;
            // What lies between two parts is not watched.
            let last = runs.last_mut().filter(|(run, _)| run.start >= start + part.start);
            match last {
                // Each run takes a call.
                Some((run, written)) if region.start - run.end <= GAP => {
                    run.end = region.end;
                    *written += size;
                }
                _ => runs.push((region.start..region.end, size)),
            }
        }
    }
    if runs.len() > RUNS_MAX {
        // Each part is one.
        let parts = pages.private_image_parts().map(|part| start + part.start..start + part.end);
        let written = |part: &Range<u64>| {
            let inside = runs.iter().filter(|(run, _)| part.contains(&run.start));
            inside.map(|(_, written)| written).sum()
        };
        runs = parts.map(|part| (part.clone(), written(&part))).collect();
    }
    let mut regions = Vec::with_capacity(REGIONS);
    let mut shared = Vec::new();
    for (run, written) in runs {
        let known = regions.len();
        if !watches {
            finder.find(run, &mut regions)?;
            continue;
        }
        finder.find_and_watch(run.clone(), &mut regions)?;
        let found = regions[known..].iter().filter(is_written);
        if found.map(|region| region.end - region.start).sum::<u64>() < written {
            // Where this fails, the next snapshot takes longer, and finds the same.
            shared.clear();
            let _ = finder.protect_shared(run, &mut shared);
        }
    }
    let offsets = |region: &PageRegion| region.start - start..region.end - start;
    let unwritten = present.iter().filter(|region| !is_written(region)).map(offsets).collect();
    Ok((regions, common(before, &joined(unwritten))))
}

/// What is in both: ranges, ascending and apart.
fn common(some: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    without(some, &without(some, others))
}

pub(super) fn of_page(page: u64) -> Range<u64> {
    page..page + PAGE_SIZE
}
