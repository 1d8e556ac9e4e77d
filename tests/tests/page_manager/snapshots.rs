//! Snapshots of a program with the manager, between its calls and in the middle of them: free pages are
//! left out, and nothing else is.

use pagefork::image::{ContentHash, ImageStore};
use pagefork::suspend::{self, CallProgress};
use pagefork::{Engine, Func, Linker, LoadOptions, SaveOptions, Snapshot, Store, Val};
use pagefork_wasi::WasiCtx;

use super::context;
use super::guests::{fetched, scratch};
use super::partner::{self, Partner};

/// A program of which snapshots are made, and what its host sees of it.
pub(super) struct Mapping {
    pub(super) store: Store<WasiCtx>,
}

impl Mapping {
    pub(super) fn start() -> Option<Self> {
        Self::start_of("pageman_snapshots.wasm")
    }

    /// Another program that does the same.
    pub(super) fn start_of(file: &str) -> Option<Self> {
        let guest = fetched(file)?;
        let mut store = Store::new(guest.engine(), context());
        let linker = linker(guest.engine());
        let instance = linker.instantiate(&mut store, &guest).expect("it is all there");
        let start = instance.get_typed_func::<(), ()>(&mut store, "_initialize");
        start.and_then(|start| start.call(&mut store, ())).expect("a library");
        Some(Self { store })
    }

    /// What was spawned from a snapshot of it as it is now.
    pub(super) fn copy(&mut self) -> Self {
        let pre = self.store.snapshot().and_then(|snapshot| snapshot.instance_pre());
        let (store, _) = pre.and_then(|pre| pre.spawn(context())).expect("a slot");
        Self { store }
    }

    /// What was loaded from an image of it as it is now, and the snapshot: the image has only what
    /// differs from the snapshot before.
    fn saved(
        &mut self,
        images: &ImageStore,
        before: Option<&Snapshot<WasiCtx>>,
    ) -> (Self, Snapshot<WasiCtx>) {
        let snapshot = self.store.snapshot().expect("it can be captured");
        let options = SaveOptions::new();
        let options = before.into_iter().fold(options, |options, before| options.delta_of(before));
        let image = snapshot.save(images, options).expect("it can be saved");
        (Self::loaded(&linker(self.store.engine()), images, image), snapshot)
    }

    /// What goes on from an image, wherever that was made.
    pub(super) fn loaded(
        linker: &Linker<WasiCtx>,
        images: &ImageStore,
        image: ContentHash,
    ) -> Self {
        let options = LoadOptions::new().trust(partner::trusted());
        let pre = Snapshot::load(linker, images, image, options).and_then(|it| it.instance_pre());
        let (store, _) = pre.and_then(|pre| pre.spawn(context())).expect("a slot");
        Self { store }
    }

    /// Does so many random calls.
    pub(super) fn turn(&mut self, calls: i32) -> u32 {
        let turn = self.exported("turn").typed::<i32, u32>(&self.store).expect("its type");
        turn.call(&mut self.store, calls).expect("it does not trap")
    }

    /// Has it look at all that it has mapped; how many pages are free and dirty.
    pub(super) fn verify(&mut self) -> usize {
        let verify = self.exported("verify").typed::<(), u32>(&self.store).expect("its type");
        verify.call(&mut self.store, ()).expect("it does not trap") as usize
    }

    pub(super) fn exported(&mut self, name: &str) -> Func {
        let instance = suspend::instance(&self.store, 1);
        instance.get_func(&mut self.store, name).expect("it is exported")
    }

    fn memory(&mut self) -> &[u8] {
        let instance = suspend::instance(&self.store, 1);
        let memory = instance.get_memory(&mut self.store, "memory").expect("it is exported");
        memory.data(&self.store)
    }

    pub(super) fn memory_mut(&mut self) -> &mut [u8] {
        let instance = suspend::instance(&self.store, 1);
        let memory = instance.get_memory(&mut self.store, "memory").expect("it is exported");
        memory.data_mut(&mut self.store)
    }

    fn pages_in_use(&mut self) -> usize {
        let is_used = |page: &&[u8]| page.iter().any(|byte| *byte != 0);
        self.memory().chunks(4 << 10).filter(is_used).count()
    }

    /// The address of its page map.
    pub(super) fn page_map(&mut self) -> usize {
        let instance = suspend::instance(&self.store, 1);
        let map = instance.get_global(&mut self.store, "pageman_page_map").expect("its address");
        map.get(&mut self.store).unwrap_i32() as usize
    }

    /// Whether it is in the middle of a change.
    pub(super) fn is_changing(&mut self) -> bool {
        let map = self.page_map();
        self.memory()[map + 8] % 2 == 1
    }
}

pub(super) fn linker(engine: &Engine) -> Linker<WasiCtx> {
    let mut linker = Linker::new(engine);
    pagefork_wasi::add_to_linker(&mut linker, |context| context).expect("every name is free");
    linker
}

/// What a program has freed is left out of its snapshots; it goes on from them with all that it has
/// mapped, and its manager knows that what is free is zero. The program itself keeps its bytes.
#[test]
fn snapshots_leave_free_pages_out() {
    let Some(mut program) = Mapping::start() else { return };
    let mut left_out = 0;
    for _ in 0..20 {
        program.turn(100);
        let dirty = program.verify();
        let before = program.pages_in_use();
        let mut copy = program.copy();
        assert_eq!(before - copy.pages_in_use(), dirty, "what was free and dirty");
        assert_eq!(program.pages_in_use(), before, "the original has it all");
        assert_eq!(copy.verify(), 0, "nothing is dirty");
        assert_eq!(copy.turn(50), program.copy().turn(50));
        copy.verify();
        left_out += dirty;
    }
    assert!(left_out > 500, "{left_out} pages were left out");
}

/// The same of images in files, each a delta of the one before: what was freed since then is zero in
/// what is loaded, though the image before has its bytes.
#[test]
fn images_leave_free_pages_out() {
    let Some(mut program) = Mapping::start() else { return };
    let directory = scratch("pageman-deltas");
    let images = ImageStore::open(&directory).expect("a directory");
    let mut before = None;
    for _ in 0..8 {
        program.turn(100);
        let (mut loaded, snapshot) = program.saved(&images, before.as_ref());
        assert_eq!(loaded.pages_in_use(), program.copy().pages_in_use());
        assert_eq!(loaded.verify(), 0, "nothing is dirty");
        assert_eq!(loaded.turn(50), program.copy().turn(50));
        loaded.verify();
        before = Some(snapshot);
    }
    std::fs::remove_dir_all(directory).expect("it is there");
}

/// A snapshot in the middle of the manager's work leaves nothing out that it counts on.
#[test]
fn snapshots_in_the_middle_of_a_change_have_all() {
    let Some(mut program) = Mapping::start() else { return };
    program.turn(300);
    let turn = program.exported("turn");
    let mut copies = Vec::new();
    let mut progress = suspend::call(&mut program.store, &turn, &[Val::I32(60)], Some(1));
    let digest = loop {
        match progress.expect("it does not trap") {
            CallProgress::Finished(results) => break results[0].unwrap_i32(),
            CallProgress::Suspended => {
                if program.is_changing() {
                    copies.push(program.copy());
                }
            }
        }
        progress = suspend::resume(&mut program.store, Some(19));
    };
    program.verify();
    assert!(copies.len() > 20, "only {} copies", copies.len());
    for mut copy in copies {
        let CallProgress::Finished(results) = suspend::resume(&mut copy.store, None).unwrap()
        else {
            panic!("nothing stops it")
        };
        assert_eq!(results[0].unwrap_i32(), digest);
        copy.verify();
    }
}

/// The same of images in files, in the middle of calls and between their steps, which go on in another
/// process: they come to what the program itself comes to, and go on from there.
#[test]
fn images_in_the_middle_of_a_call_go_on_in_another_process() {
    let Some(mut program) = Mapping::start() else { return };
    let (mut partner, images) = Partner::start("snapshots::other_process", "page-manager");
    program.turn(300);
    let turn = program.exported("turn");
    let (key, mut before) = ([partner::key()], None::<Snapshot<WasiCtx>>);
    let (mut in_a_change, mut beside, mut stops) = (Vec::new(), Vec::new(), 0);
    let mut progress = suspend::call(&mut program.store, &turn, &[Val::I32(60)], Some(1));
    while let CallProgress::Suspended = progress.expect("it does not trap") {
        let is_changing = program.is_changing();
        stops += 1;
        if is_changing || stops % 40 == 0 {
            let snapshot = program.store.snapshot().expect("it can be captured");
            let options = SaveOptions::new().sign_with(&key);
            // Each third stands alone, the others have what differs from the one before.
            let options = before.iter().fold(options, |options, one| options.delta_of(one));
            let image = snapshot.save(&images, options).expect("it can be saved");
            let list = if is_changing { &mut in_a_change } else { &mut beside };
            list.push(image);
            before = Some(snapshot).filter(|_| (in_a_change.len() + beside.len()) % 3 != 0);
        }
        progress = suspend::resume(&mut program.store, Some(29));
    }
    program.verify();
    let expected = program.turn(50).to_string();
    println!("{} images in a change, {} beside, of {stops} stops", in_a_change.len(), beside.len());
    assert!(in_a_change.len() > 15 && beside.len() > 5);
    for image in in_a_change.iter().chain(&beside) {
        assert_eq!(partner.ask(&image.to_string()), expected, "{image}");
    }
}

/// Goes on from an image to the end of its call, and does 50 calls more.
#[test]
#[ignore = "run by others, as a second process"]
fn other_process() {
    partner::serve(|directory| {
        let images = ImageStore::open(directory).expect("the store of the first process");
        let linker = linker(&Engine::default());
        Box::new(move |image| {
            let image = image.parse().expect("a hash");
            let mut program = Mapping::loaded(&linker, &images, image);
            let progress = suspend::resume(&mut program.store, None).expect("it does not trap");
            assert!(matches!(progress, CallProgress::Finished(_)), "nothing stops it");
            program.verify();
            let digest = program.turn(50);
            program.verify();
            digest.to_string()
        })
    });
}
