//! Bytes that are saved by name beside the pages of a snapshot, such as files of a session.

use pagefork_image::{Attachment, ImageError, ReadAt};

use crate::api::snapshot::Snapshot;
use crate::api::stored::SaveOptions;
use crate::base::error::Result;

/// What is saved beside the pages.
#[derive(Default)]
pub(super) struct Attachments<'a> {
    named: Vec<(String, u32)>,
    pub(super) bytes: Vec<&'a dyn ReadAt>,
}

impl Attachments<'_> {
    /// As a manifest has them.
    ///
    /// # Errors
    /// If the size of one cannot be found out.
    pub(super) fn described(&self) -> Result<Vec<Attachment>> {
        let describe = |((name, kind), bytes): (&(String, u32), &&dyn ReadAt)| {
            let size = bytes.size().map_err(ImageError::source_failed)?;
            Ok(Attachment { name: name.clone(), kind: *kind, size, data_offset: 0 })
        };
        self.named.iter().zip(&self.bytes).map(describe).collect()
    }
}

impl<'a> SaveOptions<'a> {
    /// Bytes that are saved beside the pages, as often as it is called: who loads the snapshot
    /// reads them by [`Snapshot::read_attachment`]. They are read when it is saved. `name` tells
    /// people what they are, and `kind` programs; `pagefork-wasi` uses 1 and 2 for files of a
    /// session. A delta has all of its own, and none of its parent's.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::image::ImageStore;
    /// use pagefork::{Engine, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};
    ///
    /// # let directory = std::env::temp_dir().join(format!("pagefork-attached-{}", std::process::id()));
    /// let images = ImageStore::open(&directory)?;
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, "(module)")?;
    /// let mut store = Store::new(&engine, ());
    /// Instance::new(&mut store, &module, &[])?;
    /// let notes = b"some notes".to_vec();
    /// let options = SaveOptions::new().attach("notes", 100, &notes);
    /// let image = store.snapshot()?.save(&images, options)?;
    ///
    /// let linker: Linker<()> = Linker::new(&engine);
    /// let snapshot = Snapshot::load(&linker, &images, image, LoadOptions::new())?;
    /// let [attachment] = snapshot.attachments() else { panic!("there is one") };
    /// assert_eq!((attachment.name.as_str(), attachment.kind, attachment.size), ("notes", 100, 10));
    /// let mut end = [0; 5];
    /// snapshot.read_attachment(0, 5, &mut end)?;
    /// assert_eq!(&end, b"notes");
    /// # std::fs::remove_dir_all(directory).unwrap();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[must_use]
    pub fn attach(mut self, name: impl Into<String>, kind: u32, bytes: &'a dyn ReadAt) -> Self {
        self.attachments.named.push((name.into(), kind));
        self.attachments.bytes.push(bytes);
        self
    }
}

impl<T: 'static> Snapshot<T> {
    /// What was saved with a snapshot beside its pages, in the order in which it was
    /// [attached](SaveOptions::attach); nothing of one that was neither saved nor loaded.
    ///
    /// # Examples
    ///
    /// See [`SaveOptions::attach`].
    pub fn attachments(&self) -> &[Attachment] {
        let stored = self.frozen().stored.get();
        stored.map_or(&[], |stored| &stored.chain().tip().manifest().attachments)
    }

    /// Fills `into` with the bytes of an attachment from `offset` on. `index` is its place among
    /// [`Snapshot::attachments`].
    ///
    /// # Errors
    /// [`ImageError`](crate::image::ImageError) if there are no such bytes, or they cannot be read.
    ///
    /// # Examples
    ///
    /// See [`SaveOptions::attach`].
    pub fn read_attachment(&self, index: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        let none = || ImageError::Invalid(format!("there is no attachment {index}"));
        let stored = self.frozen().stored.get().ok_or_else(none)?;
        Ok(stored.chain().tip().read_attachment(index, offset, into)?)
    }
}
