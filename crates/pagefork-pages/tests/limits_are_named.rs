//! At each limit of the process the error names it, and lifting the load works
//! again. Each test runs in a process of its own, because limits are for all.

mod common;

use common::*;
use pagefork_layout::slot::PRE_GUARD;
use pagefork_pages::{HostFeatures, Image, PagesError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn limit(resource: Resource, value: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(value), maximum }).unwrap();
}

/// Field of `/proc/self/statm` in bytes.
fn statm(field: usize) -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(field).unwrap().parse::<u64>().unwrap() * PAGE
}

#[test]
fn address_space_limit() {
    in_own_process("address_space_limit", || {
        let layout = layout();
        let image = empty_image(&layout);
        let bytes = statm(0) + 4 * 1024 * MIB;
        limit(Resource::As, bytes);
        let before = held();
        let error = spawn(&layout, &image, 0, 0).unwrap_err();
        let PagesError::AddressSpaceLimit { limit: named, requested, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((named, requested), (bytes, layout.size + PRE_GUARD));
        assert!(error.to_string().contains("ulimit -v"), "{error}");
        assert_eq!(held(), before);
        // What is small still fits.
        let small = layout_without_memory();
        spawn(&small, &empty_image(&small), 0, 0).unwrap();
    });
}

#[test]
fn data_limit() {
    in_own_process("data_limit", || {
        let layout = layout();
        let image = empty_image(&layout);
        let mut slot = spawn(&layout, &image, 0, 1024 * MIB).unwrap();
        limit(Resource::Data, statm(5) + 32 * MIB);
        let before = held();
        let error = slot.grow_memory(0, 64 * MIB).unwrap_err();
        assert!(matches!(error, PagesError::DataLimit { .. }), "{error}");
        assert!(error.to_string().contains("ulimit -d"), "{error}");
        assert_eq!(slot.memory_size(0), 0);
        let error = spawn(&layout, &image, 64 * MIB, 64 * MIB).unwrap_err();
        assert!(matches!(error, PagesError::DataLimit { .. }), "{error}");
        assert_eq!(held(), before);
        slot.grow_memory(0, MIB).unwrap();
    });
}

#[test]
fn descriptor_limit() {
    in_own_process("descriptor_limit", || {
        let before = held();
        limit(Resource::Nofile, 20);
        let new = |_| Image::new("many", 0..PAGE, [(0, &b"x"[..])]);
        let images: Result<Vec<_>, _> = (0..20).map(new).collect();
        let error = images.unwrap_err();
        assert_eq!(error, PagesError::TooManyDescriptors { limit: 20 });
        assert!(error.to_string().contains("ulimit -n"), "{error}");
        assert_eq!(held(), before);
        new(0).unwrap();
    });
}

#[test]
fn file_size_limit() {
    in_own_process("file_size_limit", || {
        limit(Resource::Fsize, MIB);
        let bytes = pattern(1, 2 * MIB);
        let error = Image::new("large", 0..2 * MIB, [(0, &bytes[..])]).unwrap_err();
        assert_eq!(error, PagesError::FileSizeLimit { requested: 2 * MIB, limit: MIB });
        Image::new("fits", 0..MIB, [(0, &bytes[..MIB as usize])]).unwrap();
    });
}

#[test]
fn map_limit() {
    in_own_process("map_limit", || {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        let maps_max: usize = text.trim().parse().unwrap();
        if maps_max > 300_000 {
            println!("skipped: vm.max_map_count is {maps_max}, too far away to reach");
            return;
        }
        let layout = layout_without_memory();
        let (image, _) = dense_image(&layout, 1, 0);
        let other = empty_image(&layout);
        HostFeatures::get().unwrap();
        drop(spawn(&layout, &image, 0, 0).unwrap());
        let mut slots = Vec::with_capacity(maps_max);
        let before = held();
        let error = loop {
            match spawn(&layout, &image, 0, 0) {
                Ok(slot) => slots.push(slot),
                Err(error) => break error,
            }
        };
        let PagesError::TooManyMaps { count, limit } = error else { panic!("{error}") };
        // Some are left for the rest of the process, which would abort without.
        assert!((limit - 600..=limit - 400).contains(&count), "{count} maps");
        let rest: Vec<Vec<u8>> = (0..100).map(|_| vec![1; 1 << 20]).collect();
        assert!(rest.iter().all(|part| part[0] == 1));
        drop(rest);
        assert_eq!(limit, maps_max as u64);
        assert!(error.to_string().contains("vm.max_map_count"), "{error}");
        assert!(slots.len() >= maps_max / 4 - 200, "{} slots", slots.len());
        // At the limit, dropping in any order works and makes room.
        for percent in [50, 0, 33, 99] {
            let index = slots.len() * percent / 100;
            drop(slots.drain(index..index + 4));
            slots.push(spawn(&layout, &other, 0, 0).unwrap());
        }
        slots.clear();
        drop(spawn(&layout, &image, 0, 0).unwrap());
        assert_eq!(held(), before);
    });
}

#[test]
fn address_space_exhausted() {
    in_own_process("address_space_exhausted", || {
        let layout = layout();
        let image = empty_image(&layout);
        let mut slots = Vec::with_capacity(1 << 15);
        drop(spawn(&layout, &image, 0, 0).unwrap());
        let before = held();
        let error = loop {
            match spawn(&layout, &image, 0, 0) {
                Ok(slot) => slots.push(slot),
                Err(error) => break error,
            }
        };
        let PagesError::AddressSpaceExhausted { mapped, .. } = error else { panic!("{error}") };
        assert!(mapped > (1 << 47) - (1 << 40), "{mapped:#x}");
        assert!(slots.len() > 16_000, "{} slots", slots.len());
        assert!(error.to_string().contains("47-bit"), "{error}");
        slots.clear();
        assert_eq!(held(), before);
    });
}
