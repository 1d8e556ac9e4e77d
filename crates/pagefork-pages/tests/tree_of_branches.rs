//! Random writes, growth, snapshots, spawns and resets, of images that are branches of each
//! other: each slot and each image is at every time what a model of plain bytes says.

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::ops::Range;
use std::sync::Arc;

use common::*;
use matrix::*;
use pagefork_layout::module::MemoryType;
use pagefork_layout::slot::SlotLayout;
use pagefork_pages::{DeltaTracker, Image, ImageForm, MemorySize, Slot, StrategyConfig};

/// Pages that a memory has at most.
const PAGES_MAX: u64 = 96;

/// What a slot or an image holds of tables, state and memories.
#[derive(Clone)]
struct Model {
    /// Bytes of each memory.
    sizes: Vec<u64>,
    /// As long as they can become; what is not in use is zero.
    parts: Vec<Vec<u8>>,
}

struct Node {
    image: Arc<Image>,
    model: Model,
}

struct Instance {
    slot: Slot,
    model: Model,
    /// What a reset returns to.
    fresh: Model,
    what: String,
}

struct Play {
    layout: SlotLayout,
    random: Random,
    nodes: Vec<Node>,
    instances: Vec<Instance>,
    branches: u64,
    wholes: u64,
    /// Slots that were made as another image in place.
    advanced: u64,
}

impl Play {
    fn new(memories: usize, seed: u64) -> Self {
        let layout = layout_of(&vec![MemoryType::new(0, None); memories]);
        let mut play = Self {
            layout,
            random: Random(seed),
            nodes: Vec::new(),
            instances: Vec::new(),
            branches: 0,
            wholes: 0,
            advanced: 0,
        };
        play.add_root();
        play
    }

    /// Slot offset where each part starts that is in images.
    fn starts(&self) -> Vec<u64> {
        let memories = self.layout.memories.iter();
        let further = memories.skip(1).map(|place| self.layout.base + place.offset);
        std::iter::once(self.layout.tables.start).chain(further).collect()
    }

    /// Slot offsets of the part of a slot that is in images and in use.
    fn part(&self, model: &Model, index: usize) -> Range<u64> {
        let start = self.starts()[index];
        let below = if index == 0 { self.layout.base - start } else { 0 };
        start..start + below + model.sizes[index]
    }

    fn add_root(&mut self) {
        let sizes = vec![48 * PAGE; self.layout.memories.len()];
        let mut model = Model { sizes, parts: Vec::new() };
        for (index, start) in self.starts().into_iter().enumerate() {
            let below = if index == 0 { self.layout.base - start } else { 0 };
            model.parts.push(vec![0; (below + PAGES_MAX * PAGE) as usize]);
            let part = self.part(&model, index);
            let count = (part.end - part.start) / PAGE;
            for page in 0..count {
                if self.random.below(4) > 0 {
                    let bytes = pattern(self.random.below(256) as u8, PAGE);
                    let at = (page * PAGE) as usize;
                    model.parts[index][at..at + PAGE as usize].copy_from_slice(&bytes);
                }
            }
        }
        let parts: Vec<_> = (0..model.parts.len()).map(|index| self.part(&model, index)).collect();
        let runs = parts.iter().zip(&model.parts).map(|(part, bytes)| {
            let length = (part.end - part.start) as usize;
            (part.start, &bytes[..length])
        });
        let image = Image::with_extents("root", parts.clone(), runs).unwrap();
        self.nodes.push(Node { image, model });
    }

    fn pick(&mut self, count: usize) -> usize {
        self.random.below(count as u64) as usize
    }

    fn spawn(&mut self) {
        handle_refused_writes();
        let (node, all) = (self.pick(self.nodes.len()), all_strategies());
        let (strategies, deltas) = (self.random.of(&all), *self.random.of(&DeltaTracker::ALL));
        let config = StrategyConfig { deltas, ..strategies.config() };
        let strategies = &config.check().unwrap();
        let node = &self.nodes[node];
        let sizes = memory_sizes_of(&node.model);
        let slot = Slot::with_strategies(&self.layout, &node.image, &sizes, strategies).unwrap();
        let what = format!("{:?}", strategies.config());
        let (model, fresh) = (node.model.clone(), node.model.clone());
        self.instances.push(Instance { slot, model, fresh, what });
    }

    /// One thing that happens to the instance.
    fn step(&mut self, instance: &mut Instance) {
        match self.random.below(18) {
            0..=5 => self.write(instance),
            6 => self.grow(instance),
            7..=9 => self.snapshot(instance),
            10..=12 => {
                instance.slot.reset_for(OWNER).unwrap();
                instance.model = instance.fresh.clone();
            }
            13 => {
                let node = self.pick(self.nodes.len());
                let Node { image, model } = &self.nodes[node];
                instance.slot.reset_to(image, &memory_sizes_of(model), OWNER).unwrap();
                (instance.model, instance.fresh) = (model.clone(), model.clone());
            }
            16..=17 => self.advance(instance),
            14 => {
                instance.slot.reset_for(OWNER).unwrap();
                instance.slot.discard().unwrap();
                instance.model = instance.fresh.clone();
            }
            _ => {
                let changed = instance.slot.changed_pages().unwrap();
                assert_eq!(changed, self.changed(instance), "{}", instance.what);
            }
        }
        if self.random.below(3) == 0 {
            self.check(instance);
        }
    }

    /// It is made as one image after the other before it runs on.
    fn advance(&mut self, instance: &mut Instance) {
        for _ in 0..3 {
            let node = self.pick(self.nodes.len());
            let Node { image, model } = &self.nodes[node];
            let is_in_place = instance.slot.advance_to(image, &memory_sizes_of(model)).unwrap();
            self.advanced += u64::from(is_in_place);
            instance.slot.hand_to(OWNER);
            (instance.model, instance.fresh) = (model.clone(), model.clone());
            self.check(instance);
        }
    }

    fn write(&mut self, instance: &mut Instance) {
        instance.slot.enter();
        let count = [1, 2, 5, 30][self.pick(4)];
        for _ in 0..count {
            let index = self.pick(instance.model.parts.len());
            let part = self.part(&instance.model, index);
            if part.is_empty() {
                continue;
            }
            let page = part.start + self.random.below((part.end - part.start) / PAGE) * PAGE;
            let at = (page - part.start) as usize;
            let fresh = &instance.fresh.parts[index][at..at + PAGE as usize];
            let (offset, bytes) = match self.random.below(6) {
                0 => (0, vec![0; PAGE as usize]),
                1 => (0, fresh.to_vec()),
                2 => {
                    // As some other image has it.
                    let other = self.pick(self.nodes.len());
                    let other = &self.nodes[other].model.parts[index];
                    (0, other[at..at + PAGE as usize].to_vec())
                }
                3 => (0, pattern(self.random.below(256) as u8, PAGE)),
                _ => (self.random.below(PAGE), vec![self.random.below(256) as u8]),
            };
            write(&instance.slot, page + offset, &bytes);
            let at = at + offset as usize;
            instance.model.parts[index][at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn grow(&mut self, instance: &mut Instance) {
        instance.slot.enter();
        let index = self.pick(instance.model.sizes.len());
        let now = instance.model.sizes[index];
        let size = now + self.random.below((PAGES_MAX * PAGE - now) / PAGE / 4 + 1) * PAGE;
        instance.slot.grow_memory(index, size).unwrap();
        instance.model.sizes[index] = size;
    }

    /// An image of what the instance has; some bytes may be otherwise.
    fn snapshot(&mut self, instance: &mut Instance) {
        let mut model = instance.model.clone();
        let mut patches = Vec::new();
        for _ in 0..[0, 0, 1, 3][self.pick(4)] {
            let index = self.pick(model.parts.len());
            let part = self.part(&model, index);
            let length = self.random.below(2 * PAGE).min(part.end - part.start);
            let at = self.random.below(part.end - part.start - length + 1);
            let bytes = vec![self.random.below(4) as u8; length as usize];
            model.parts[index][at as usize..(at + length) as usize].copy_from_slice(&bytes);
            patches.push((part.start + at, bytes));
        }
        let patches: Vec<_> = patches.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        let image = instance.slot.snapshot("snapshot", &patches, ImageForm::Branch).unwrap();
        match image.parent() {
            Some(_) => self.branches += 1,
            None => self.wholes += 1,
        }
        self.nodes.push(Node { image, model });
        self.check_image(self.nodes.len() - 1);
        if self.nodes.len() > 12 {
            let gone = self.pick(self.nodes.len());
            self.nodes.swap_remove(gone);
        }
    }

    /// The pages that are not as after a reset.
    fn changed(&self, instance: &Instance) -> Vec<u64> {
        let mut changed = Vec::new();
        for index in 0..instance.model.parts.len() {
            let part = self.part(&instance.model, index);
            for page in part.clone().step_by(PAGE as usize) {
                let at = (page - part.start) as usize;
                let place = at..at + PAGE as usize;
                let [now, fresh] = [&instance.model, &instance.fresh]
                    .map(|model| &model.parts[index][place.clone()]);
                changed.extend((now != fresh).then_some(page));
            }
        }
        changed
    }

    #[track_caller]
    fn check(&self, instance: &Instance) {
        assert_eq!(memory_sizes(&instance.slot), instance.model.sizes);
        for (index, wanted) in instance.model.parts.iter().enumerate() {
            let part = self.part(&instance.model, index);
            let found = bytes(&instance.slot, part.clone());
            let wanted = &wanted[..found.len()];
            if let Some(at) = (0..found.len()).find(|&at| found[at] != wanted[at]) {
                let at = part.start + at as u64;
                panic!("{}: slot offset {at:#x}: {:?}", instance.what, instance.slot.image());
            }
        }
    }

    /// Also what an image is a branch of.
    #[track_caller]
    fn check_image(&self, node: usize) {
        let Node { image, model } = &self.nodes[node];
        for (index, bytes) in model.parts.iter().enumerate() {
            let part = self.part(model, index);
            let mut found = vec![0; (part.end - part.start) as usize];
            for extent in image.extents().iter().filter(|extent| part.contains(&extent.start)) {
                let at = (extent.start - part.start) as usize;
                let length = (extent.end - extent.start) as usize;
                image.read(extent.start, &mut found[at..at + length]).unwrap();
            }
            assert!(found == bytes[..found.len()], "image {image:?}");
        }
        if let Some(parent) = image.parent() {
            assert_eq!(image.depth(), parent.depth() + 1);
            assert!(Arc::ptr_eq(image.root(), parent.root()));
        }
    }
}

fn memory_sizes_of(model: &Model) -> Vec<MemorySize> {
    let size = |&initial: &u64| MemorySize { initial, maximum: PAGES_MAX * PAGE };
    model.sizes.iter().map(size).collect()
}

#[test]
fn slots_and_images_are_what_a_model_says() {
    let (mut branches, mut wholes, mut advanced) = (0, 0, 0);
    for (memories, seed) in [(1, 1), (3, 2), (1, 3), (2, 4), (1, 5), (1, 6)] {
        let mut play = Play::new(memories, seed);
        for _ in 0..600 {
            if play.instances.len() < 3 {
                play.spawn();
            }
            let index = play.pick(play.instances.len());
            let mut instance = play.instances.swap_remove(index);
            for _ in 0..1 + play.random.below(6) {
                play.step(&mut instance);
            }
            if play.random.below(12) > 0 {
                play.instances.push(instance);
            }
        }
        for node in 0..play.nodes.len() {
            play.check_image(node);
        }
        for instance in &mut play.instances {
            instance.slot.reset_for(OWNER).unwrap();
            instance.model = instance.fresh.clone();
        }
        play.instances.iter().for_each(|instance| play.check(instance));
        branches += play.branches;
        wholes += play.wholes;
        advanced += play.advanced;
    }
    assert!(branches > 500 && wholes > 100, "{branches} branches, {wholes} whole images");
    assert!(advanced > 50, "{advanced} slots became another image in place");
}
