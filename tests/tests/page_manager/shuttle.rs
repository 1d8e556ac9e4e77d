//! A program that maps and allocates at random goes to and fro between two processes: after each hundred of its calls it is
//! captured in the middle of one, and goes on elsewhere.

use pagefork::image::{ContentHash, ImageStore};
use pagefork::suspend::{self, CallProgress};
use pagefork::{Engine, SaveOptions, Val};

use super::partner::{self, Partner};
use super::snapshots::{Mapping, linker};

/// Calls before each hop.
const CALLS: i32 = 100;

/// What a process has done with the program before it goes on in the other.
struct Stage {
    /// What its calls have come to, before the one in which it was captured.
    digest: u32,
    /// Calls that were done, with that one.
    calls: u32,
    /// Whether the manager was in the middle of a change.
    in_a_change: bool,
    image: ContentHash,
}

impl Stage {
    /// Does a hundred calls, and begins more until one is caught in the middle. Each hop catches it at another point: each
    /// third anywhere in a call, the others in a change of the manager's tables.
    fn of(program: &mut Mapping, images: &ImageStore, hop: u64) -> Self {
        let digest = program.turn(CALLS);
        program.verify();
        let turn = program.exported("turn");
        let (anywhere, mut points) = (hop.is_multiple_of(3), 1 + hop % 11);
        let mut calls = CALLS as u32;
        let (mut progress, mut digest) = (None, digest);
        let in_a_change = loop {
            match progress.take() {
                Some(CallProgress::Suspended) => {
                    let in_a_change = program.is_changing();
                    points -= u64::from(anywhere || in_a_change);
                    if points == 0 {
                        break in_a_change;
                    }
                    let steps = 1 + hop * 7 % 23;
                    let on = suspend::resume(&mut program.store, Some(steps));
                    progress = Some(on.expect("it does not trap"));
                }
                Some(CallProgress::Finished(results)) => {
                    digest = results[0].unwrap_i32().cast_unsigned();
                }
                None => {
                    calls += 1;
                    assert!(calls <= 2 * CALLS as u32, "no call is seen to change anything");
                    let call = suspend::call(&mut program.store, &turn, &[Val::I32(1)], Some(1));
                    progress = Some(call.expect("it does not trap"));
                }
            }
        };
        let snapshot = program.store.snapshot().expect("it can be captured");
        let key = [partner::key()];
        let options = SaveOptions::new().sign_with(&key);
        let image = snapshot.save(images, options).expect("it can be saved");
        Self { digest, calls, in_a_change, image }
    }

    /// Goes on from an image, to the end of the call that it was captured in, and does a stage more.
    fn from(images: &ImageStore, image: ContentHash, hop: u64) -> Self {
        let mut program = Mapping::loaded(&linker(&Engine::default()), images, image);
        finish(&mut program);
        Self::of(&mut program, images, hop)
    }
}

/// Ends the call that a program was captured in; what it has come to then.
fn finish(program: &mut Mapping) -> u32 {
    let progress = suspend::resume(&mut program.store, None).expect("it does not trap");
    let CallProgress::Finished(results) = progress else { panic!("nothing stops it") };
    program.verify();
    results[0].unwrap_i32().cast_unsigned()
}

/// Goes so often from one process to the other. All along it comes to what the same program comes to that stays
/// where it is, and all that the manager knows is right.
fn shuttle(file: &str, hops: u64) {
    let (Some(mut program), Some(mut stays)) = (Mapping::start_of(file), Mapping::start_of(file))
    else {
        return;
    };
    let name = format!("shuttle-{file}");
    let (mut other, images) = Partner::start("shuttle::other_process", &name);
    let mut stage = Stage::of(&mut program, &images, 0);
    drop(program);
    let (mut in_changes, mut beside) = (0, 0);
    for hop in 1..=hops {
        // All of its calls but the one that it is in the middle of.
        assert_eq!(stage.digest, stays.turn(stage.calls as i32 - 1), "{file}, hop {hop}");
        stays.turn(1);
        *if stage.in_a_change { &mut in_changes } else { &mut beside } += 1;
        stage = if hop.is_multiple_of(2) {
            Stage::from(&images, stage.image, hop)
        } else {
            let answer = other.ask(&format!("{} {hop}", stage.image));
            let mut words = answer.split(' ');
            let mut next = || words.next().expect("four words");
            Stage {
                digest: next().parse().expect("a number"),
                calls: next().parse().expect("a number"),
                in_a_change: next() == "true",
                image: next().parse().expect("a hash"),
            }
        };
    }
    println!("{file}: {in_changes} times in a change, {beside} beside");
    assert!(in_changes * 2 > hops && beside * 8 > hops, "{in_changes} and {beside}");
    let mut program = Mapping::loaded(&linker(&Engine::default()), &images, stage.image);
    assert_eq!(stage.digest, stays.turn(stage.calls as i32 - 1));
    assert_eq!(finish(&mut program), stays.turn(1));
    assert_eq!(program.turn(200), stays.turn(200));
}

#[test]
fn a_program_goes_to_and_fro_in_the_middle_of_its_calls() {
    shuttle("pageman_travels.wasm", 24);
}

#[test]
fn a_program_with_large_pages_goes_to_and_fro_in_the_middle_of_its_calls() {
    shuttle("pageman_travels_64k.wasm", 12);
}

#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn a_program_goes_to_and_fro_a_thousand_times() {
    shuttle("pageman_travels.wasm", 1000);
    shuttle("pageman_travels_64k.wasm", 200);
}

/// Goes on from an image, up to the next hop.
#[test]
#[ignore = "run by others, as a second process"]
fn other_process() {
    partner::serve(|directory| {
        let images = ImageStore::open(directory).expect("the store of the first process");
        Box::new(move |question| {
            let (image, hop) = question.split_once(' ').expect("an image and a number");
            let (image, hop) = (image.parse().expect("a hash"), hop.parse().expect("a number"));
            let Stage { digest, calls, in_a_change, image } = Stage::from(&images, image, hop);
            format!("{digest} {calls} {in_a_change} {image}")
        })
    });
}
