//! Images that were asked for by name, from which programs go on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pagefork::image::{ContentHash, ImageStore, StoredImage};
use pagefork::{Linker, LoadOptions, Module, Snapshot};
use pagefork_node::{ComingImage, GuestClock, HolderCheck, ThreadClock, TimeSpent};
use pagefork_postcopy::PlanLayer;

use super::keys;
use crate::node::holders;
use crate::{output, show};

/// How long the end of a program waits for the node that its image came from.
const GOOD_BYE: Duration = Duration::from_secs(1);

/// An image, from which programs go on as long as this is kept.
pub(crate) enum NamedImage {
    /// All of it is in the store.
    Here {
        hash: ContentHash,
        /// An image that was fetched has no name: collection spares it.
        #[expect(dead_code, reason = "it is kept")]
        held: Option<StoredImage>,
    },
    /// Its pages come while programs run.
    Coming {
        name: String,
        /// Says which of the holders that it names are not asked.
        known: HolderCheck,
        coming: ComingImage,
        /// Since it was asked for, by the thread that loads it.
        began: ThreadClock,
        /// What it took from then until programs could go on, if that is to be said.
        loaded: Option<TimeSpent>,
        /// How long modules were compiled for it.
        compiled: Option<Duration>,
        /// Counts what its programs take, if that is to be said.
        guests: Option<GuestClock>,
    },
}

impl NamedImage {
    /// Loads it.
    pub(crate) fn load<T: 'static>(
        &mut self,
        linker: &Linker<T>,
        images: &ImageStore,
    ) -> Result<Snapshot<T>, String> {
        let mut time = None;
        let mut compile = |bytes: &[u8]| {
            let began = Instant::now();
            let module = Module::from_binary(linker.engine(), bytes);
            *time.get_or_insert(Duration::ZERO) += began.elapsed();
            module
        };
        let options = LoadOptions::new().trust(keys::trusted()?).compile(&mut compile);
        let snapshot = match self {
            Self::Here { hash, .. } => Snapshot::load(linker, images, *hash, options),
            Self::Coming { coming, began, loaded, compiled, .. } => {
                let image = coming.image();
                let snapshot = Snapshot::load_incomplete(linker, image, images, options);
                (*loaded, *compiled) = (Some(began.spent()), time);
                snapshot
            }
        };
        snapshot.map_err(|error| format!("{error:#}"))
    }

    /// What counts the runs of its programs, if that is to be said.
    pub(crate) fn guests(&self) -> Option<GuestClock> {
        match self {
            Self::Coming { guests, .. } => guests.clone(),
            Self::Here { .. } => None,
        }
    }

    /// Lets go of it when programs have ended, and says what it took, if that is to be said.
    pub(crate) fn end(self) {
        let Self::Coming { name, known, coming, loaded, compiled, guests, .. } = self else {
            return;
        };
        let (head, code) = (coming.head_time(), coming.code_time());
        let image = Arc::clone(coming.image());
        // It says good-bye, and notes what was touched.
        // Who wants to know waits for that, which may be writing an image.
        let patience = if guests.is_some() { Duration::from_secs(60) } else { GOOD_BYE };
        let Some(fetched) = coming.stop_within(patience) else { return };
        let Some(guests) = guests.map(|guests| guests.times()) else { return };
        for holder in &image.head().manifest().holders {
            let unasked = known.find(holder).err();
            let why =
                unasked.map_or_else(String::new, |why| format!(", which is not asked: {why}"));
            output::say(format_args!("{name}: it names {}{why}", holders::shown(holder)));
        }
        let (residency, loaded) = (image.residency(), loaded.unwrap_or_default());
        output::say(format_args!(
            "{name}: programs could go on after {}; its head took {}, its code {}",
            milliseconds(loaded.wall),
            milliseconds(head.wall),
            milliseconds(code.wall),
        ));
        let loading = TimeSpent {
            wall: loaded.wall.saturating_sub(head.wall + code.wall),
            cpu: loaded.cpu.saturating_sub(head.cpu + code.cpu),
        };
        let spent = |name, time: TimeSpent| row(name, time.wall, time.cpu);
        let rows = [
            ["", "it took", "processor time"].map(str::to_owned).to_vec(),
            spent("head", head),
            spent("code", code),
            spent("loading", loading),
            spent("guests", guests.spent),
        ];
        output::say(show::table(&rows, &[1, 2]).trim_end());
        output::say(format_args!("{name}: {guests}"));
        if let Some(time) = compiled {
            let time = milliseconds(time);
            output::say(format_args!(
                "{name}: its code is for other machines; compiling it took {time}"
            ));
        }
        output::say(format_args!(
            "{name}: {} of {} groups of 16 KiB are here; {} bytes came and {} went over {} connections",
            residency.present,
            residency.groups,
            fetched.received,
            fetched.sent,
            fetched.connections,
        ));
        output::say(format_args!(
            "{name}: {} groups did not travel: other images have them here",
            fetched.plan.here,
        ));
        output::say(format_args!(
            "{name}: {} groups were waited for, {} in all",
            residency.waits,
            milliseconds(residency.waited),
        ));
        let cpu = fetched.cpu;
        let waits = fetched.waits;
        let rows = [
            ["", "waited for it", "processor time"].map(str::to_owned).to_vec(),
            row("network", waits.network, cpu.network),
            row("server", waits.server, cpu.server),
            row("handle", waits.handle, cpu.handle),
            row("install", waits.install, cpu.install),
            // Who waits takes some, too: to ask, to sleep and to wake.
            row("rest", waits.rest_of(residency.waited), residency.waiting_cpu),
        ];
        output::say(show::table(&rows, &[1, 2]).trim_end());
        let moments = fetched.timeline.iter().map(|moment| {
            let numbers = [moment.groups, moment.waits].map(|number| number.to_string());
            [&[milliseconds(moment.at)], &numbers[..]].concat()
        });
        let titles = ["after", "groups here", "waited for"].map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> = std::iter::once(titles).chain(moments).collect();
        output::say(show::table(&rows, &[0, 1, 2]).trim_end());
        let mut rows = vec![
            ["asked for by", "asked", "came", "waited for", "not seen to be needed"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for layer in PlanLayer::ALL {
            let counts = fetched.plan.counts(layer);
            // What is asked for because of a fault is waited for.
            let (met, unseen) = match layer {
                PlanLayer::Fault => (counts.arrived, 0),
                _ => (counts.met, counts.useless()),
            };
            let numbers = [counts.asked, counts.arrived, met, unseen];
            let mut row = vec![format!("{layer:?}").to_lowercase()];
            row.extend(numbers.map(|number| number.to_string()));
            rows.push(row);
        }
        output::say(show::table(&rows, &[1, 2, 3, 4]).trim_end());
    }
}

/// A part of the time that was waited, and what was taken of a processor for it: at the server there.
fn row(name: &str, waited: Duration, cpu: Duration) -> Vec<String> {
    vec![name.to_owned(), milliseconds(waited), milliseconds(cpu)]
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}
