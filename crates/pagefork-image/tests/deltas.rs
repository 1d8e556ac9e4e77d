//! Deltas: what they hold, what chains of them mean, and that a squashed one means the same.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

mod common;

use common::*;
use pagefork_image::*;

const MIB: u64 = 1 << 20;

fn some(numbers: &mut Numbers, pages: &[u64]) -> Contents {
    pages.iter().map(|page| (page * PAGE_SIZE, numbers.page(5))).collect()
}

fn all_named(size: u64) -> Vec<u64> {
    (0..size).step_by(PAGE).collect()
}

#[test]
fn a_delta_without_changes_has_no_pages() {
    let mut numbers = Numbers(1);
    let contents = some(&mut numbers, &[0, 1, 7, 100]);
    let parent = full(std::slice::from_ref(&contents), &[MIB]);
    let delta = delta(&parent, &[contents], &[all_named(MIB)], &[MIB]);
    assert_eq!(delta.tip().manifest().data_size, 0);
    assert!(delta.tip().size() < 2 * PAGE_SIZE);
    assert_eq!(delta.differing(0, &parent, 0).unwrap(), []);
    assert_eq!(delta.overlay(0), []);
}

#[test]
fn a_page_that_became_equal_to_the_first_one_is_kept() {
    let mut numbers = Numbers(2);
    let mut contents = some(&mut numbers, &[0, 1, 2]);
    let parent = full(std::slice::from_ref(&contents), &[MIB]);
    let first = contents[&0].clone();
    contents.insert(2 * PAGE_SIZE, first.clone());
    contents.insert(9 * PAGE_SIZE, first);
    let delta = delta(&parent, std::slice::from_ref(&contents), &[all_named(MIB)], &[MIB]);
    assert_eq!(common::contents(&delta, 0), contents);
    assert_eq!(delta.tip().manifest().data_size, 2 * PAGE_SIZE);
}

#[test]
fn a_page_that_became_zero_is_named_and_has_no_bytes() {
    let mut numbers = Numbers(3);
    let mut contents = some(&mut numbers, &[0, 1, 2, 3]);
    let parent = full(std::slice::from_ref(&contents), &[MIB]);
    contents.remove(&PAGE_SIZE);
    contents.remove(&(2 * PAGE_SIZE));
    let delta = delta(&parent, std::slice::from_ref(&contents), &[all_named(MIB)], &[MIB]);
    assert_eq!(common::contents(&delta, 0), contents);
    let tip = &delta.tip().manifest().instances[0];
    assert_eq!((tip.spans.len(), &tip.zeroed[..]), (0, &[4096..3 * 4096][..]));
    let run = OverlayRun { slot: 4096..3 * 4096, contents: OverlayContents::Zero };
    assert_eq!(delta.overlay(0), [run]);
}

#[test]
fn memories_grow_and_instances_come_and_go() {
    let mut numbers = Numbers(4);
    let first = some(&mut numbers, &[0, 255]);
    let parent = full(std::slice::from_ref(&first), &[MIB]);
    let mut grown = first.clone();
    grown.extend(some(&mut numbers, &[256, 1000]));
    let second = some(&mut numbers, &[3]);
    let sizes = [8 * MIB, MIB];
    let named = [all_named(8 * MIB), all_named(MIB)];
    let larger = delta(&parent, &[grown.clone(), second.clone()], &named, &sizes);
    assert_eq!(contents(&larger, 0), grown);
    assert_eq!(contents(&larger, 1), second);
    assert_eq!((larger.root_instance(0), larger.root_instance(1)), (Some(0), None));
    assert_eq!(larger.tip().manifest().data_size, 3 * PAGE_SIZE);
    // An instance that the delta no longer has is gone.
    let fewer = delta(&larger, std::slice::from_ref(&grown), &[vec![]], &[8 * MIB]);
    assert_eq!(contents(&fewer, 0), grown);
    assert!(fewer.read(1, 0, &mut [0; 8]).is_err());
}

#[test]
fn an_instance_does_not_shrink_and_comes_from_one_that_is_there() {
    let parent = full(&[Contents::new()], &[MIB]);
    let none = PageRuns::default();
    let mut smaller = manifest(&[MIB / 2]);
    smaller.instances[0].parent_instance = Some(0);
    assert!(matches!(parent.delta(smaller, &none), Err(ImageError::Invalid(_))));
    let mut other = manifest(&[MIB]);
    other.instances[0].parent_instance = Some(1);
    assert!(matches!(parent.delta(other, &none), Err(ImageError::Invalid(_))));
}

#[test]
fn chains_are_of_an_image_its_parent_and_so_on() {
    let root = full(&[Contents::new()], &[MIB]);
    let child = delta(&root, &[Contents::new()], &[vec![]], &[MIB]);
    let limits = ImageLimits::default();
    let (tip, end) = (child.tip().clone(), root.tip().clone());
    for images in [vec![], vec![tip.clone()], vec![end.clone(), tip.clone()], vec![end.clone(); 2]]
    {
        assert!(matches!(ImageChain::new(images, &limits), Err(ImageError::Invalid(_))));
    }
    let limits = ImageLimits { chain_length: 1, ..limits };
    let refused = ImageChain::new(vec![tip, end], &limits);
    assert!(matches!(refused, Err(ImageError::TooLarge { .. })));
}

#[test]
fn a_squashed_image_names_no_holders_because_they_have_not_got_it() {
    let parent = full(&[Contents::new()], &[1 << 20]);
    let pages = PageRuns::new(vec![Vec::new()]);
    let draft = parent.delta(Manifest { holders: holders(), ..manifest(&[1 << 20]) }, &pages);
    let image = open(write(draft.unwrap()).1).unwrap();
    assert_eq!(image.manifest().holders, holders());
    let images = vec![image, parent.tip().clone()];
    let chain = ImageChain::new(images, &ImageLimits::default()).unwrap();
    assert_eq!(open(write(chain.squash()).1).unwrap().manifest().holders, []);
}

/// Random changes over ten deltas: contents, overlays, differences and the squashed image against
/// a model.
#[test]
fn chains_mean_what_a_model_says_and_squash_means_the_same() {
    let mut numbers = Numbers(5);
    for round in 0..10 {
        let mut size = (1 + numbers.below(4)) * MIB;
        let mut model = Contents::new();
        for _ in 0..numbers.below(50) {
            model.insert(numbers.below(size / PAGE_SIZE) * PAGE_SIZE, numbers.page(4));
        }
        let mut chain = full(std::slice::from_ref(&model), &[size]);
        let mut history = vec![(chain.clone(), model.clone())];
        for _ in 0..10 {
            if numbers.below(4) == 0 {
                size += MIB;
            }
            let mut named = std::collections::BTreeSet::new();
            for _ in 0..numbers.below(30) {
                let page = numbers.below(size / PAGE_SIZE) * PAGE_SIZE;
                named.insert(page);
                match numbers.below(3) {
                    0 => drop(model.remove(&page)),
                    1 => drop(model.insert(page, numbers.page(4))),
                    _ => {}
                }
            }
            let named: Vec<u64> = named.into_iter().collect();
            chain = delta(&chain, std::slice::from_ref(&model), &[named], &[size]);
            history.push((chain.clone(), model.clone()));
        }
        chain.verify().unwrap();
        assert_eq!(contents(&chain, 0), model, "round {round}");

        // The root's spans, with the overlay over them, are the contents.
        let root = ImageChain::new(vec![chain.root().clone()], &ImageLimits::default()).unwrap();
        let mut laid = contents(&root, 0);
        for run in chain.overlay(0) {
            for page in run.slot.clone().step_by(PAGE) {
                match run.contents {
                    OverlayContents::Zero => drop(laid.remove(&page)),
                    OverlayContents::Data { image, data_offset } => {
                        let place = data_offset + (page - run.slot.start);
                        let group = chain.images()[image].read_group(place / GROUP_SIZE).unwrap();
                        let bytes = group[(place % GROUP_SIZE) as usize..][..PAGE].to_vec();
                        laid.insert(page, bytes);
                    }
                }
            }
        }
        assert_eq!(laid, model, "round {round}");

        // Squashed, it is the image that the contents make.
        let (_, squashed) = write(chain.squash());
        let pages = PageRuns::new(vec![runs(&model)]);
        assert_eq!(squashed, write(ImageDraft::new(manifest(&[size]), &pages)).1);

        for (earlier, contents) in &history {
            let differing = chain.differing(0, earlier, 0).unwrap();
            let differing: Vec<u64> =
                differing.into_iter().flat_map(|range| range.step_by(PAGE)).collect();
            let expected: Vec<u64> = (0..size)
                .step_by(PAGE)
                .filter(|page| model.get(page) != contents.get(page))
                .collect();
            assert_eq!(differing, expected, "round {round}");
        }
    }
}
