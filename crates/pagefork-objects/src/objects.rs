//! Objects by their keys: what is asked of a service, and waited for.

use std::fmt::Display;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use futures_util::lock::Mutex;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt};
use pagefork_image::ImageError;
use tokio::runtime::{Builder, Runtime};

/// Bytes of a part of a large object.
const PART_SIZE: usize = 8 << 20;

/// An object store whose answers are waited for.
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    /// `None` once it ends.
    runtime: Option<Runtime>,
    /// How long an answer is waited for.
    timeout: Duration,
    started: Instant,
    next_id: AtomicU64,
}

/// What a listing says of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListedObject {
    /// The last part of its key.
    pub(crate) name: String,
    /// Bytes.
    pub(crate) size: u64,
    /// When it was written: milliseconds by the service's clock.
    pub(crate) written: i64,
}

impl Objects {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, timeout: Duration) -> Result<Self, ImageError> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let failed = |error| ImageError::Io { action: "begin to wait for objects".into(), error };
        let (started, next_id) = (Instant::now(), AtomicU64::new(0));
        Ok(Self { store, runtime: Some(runtime.map_err(failed)?), timeout, started, next_id })
    }

    /// Waits for an answer. The caller may itself be within a runtime.
    fn wait<T: Send + 'static>(
        &self,
        action: impl Display,
        answer: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, ImageError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let runtime = self.runtime.as_ref().expect("it ends with this");
        let waits = runtime.spawn(async move {
            // Who does not wait any more needs no answer.
            let _ = sender.send(answer.await);
        });
        let failed = |error| ImageError::Io { action: action.to_string(), error };
        match receiver.recv_timeout(self.timeout) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(failed(io::Error::other(error))),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                waits.abort();
                let why = format!("it has not answered for {:?}", self.timeout);
                Err(failed(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
            Err(_) => Err(failed(io::Error::other("what was waited for panicked"))),
        }
    }

    /// `None` if there is no such object.
    fn wait_for<T: Send + 'static>(
        &self,
        action: impl Display,
        answer: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<Option<T>, ImageError> {
        self.wait(action, async move {
            match answer.await {
                Ok(answer) => Ok(Some(answer)),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    pub(crate) fn head(&self, key: &str) -> Result<Option<ListedObject>, ImageError> {
        let (store, path) = (Arc::clone(&self.store), Path::from(key));
        let found = self.wait_for(format!("look at {key}"), async move { store.head(&path).await });
        Ok(found?.map(|meta| listed(&meta)))
    }

    pub(crate) fn get(&self, key: &str) -> Result<Option<Vec<u8>>, ImageError> {
        let (store, path) = (Arc::clone(&self.store), Path::from(key));
        self.wait_for(format!("read {key}"), async move {
            Ok(store.get(&path).await?.bytes().await?.to_vec())
        })
    }

    /// # Errors
    /// Also if there is no such object any more.
    pub(crate) fn get_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, ImageError> {
        let (store, path) = (Arc::clone(&self.store), Path::from(key));
        self.wait(format!("read {key}"), async move {
            Ok(store.get_range(&path, range).await?.to_vec())
        })
    }

    /// Writes a small object at once.
    pub(crate) fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), ImageError> {
        let (store, path) = (Arc::clone(&self.store), Path::from(key));
        self.wait(
            format!("write {key}"),
            async move { store.put(&path, bytes.into()).await.map(drop) },
        )
    }

    /// Writes an object of parts. It is there when all of them are, and not before.
    ///
    /// # Errors
    /// What `parts` fail with, too. There is no object then.
    pub(crate) fn put_parts(
        &self,
        key: &str,
        parts: &mut dyn Iterator<Item = Result<Vec<u8>, ImageError>>,
    ) -> Result<(), ImageError> {
        let (first, mut is_last) = gather(parts)?;
        if is_last {
            return self.put(key, first);
        }
        let (store, path) = (Arc::clone(&self.store), Path::from(key));
        let action = format!("write {key}");
        let upload = self.wait(&action, async move { store.put_multipart(&path).await })?;
        // A step that is not waited for any more lets go of it.
        let upload = Arc::new(Mutex::new(upload));
        let mut bytes = first;
        let outcome = loop {
            let part = Arc::clone(&upload);
            let sent = self.wait(&action, async move {
                let sent = part.lock().await.put_part(bytes.into());
                sent.await
            });
            let next = match (sent, is_last) {
                (Ok(()), true) => break Ok(()),
                (Ok(()), false) => gather(parts),
                (Err(error), _) => Err(error),
            };
            match next {
                Ok(next) => (bytes, is_last) = next,
                Err(error) => break Err(error),
            }
        };
        let completed = Arc::clone(&upload);
        let complete = async move { completed.lock().await.complete().await.map(drop) };
        outcome.and_then(|()| self.wait(&action, complete)).inspect_err(|_| {
            // What stays of it has no name; services remove it after a time.
            let _ = self.wait(&action, async move { upload.lock().await.abort().await });
        })
    }

    /// Removes an object if it is there.
    pub(crate) fn delete(&self, key: &str) -> Result<(), ImageError> {
        let (store, path) = (Arc::clone(&self.store), Path::from(key));
        self.wait_for(format!("remove {key}"), async move { store.delete(&path).await }).map(drop)
    }

    /// All objects of a folder.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<ListedObject>, ImageError> {
        let (store, path) = (Arc::clone(&self.store), Path::from(folder));
        let found: Vec<ObjectMeta> = self.wait(format!("list {folder}"), async move {
            store.list(Some(&path)).try_collect().await
        })?;
        Ok(found.iter().map(listed).collect())
    }

    /// The service's time in milliseconds.
    pub(crate) fn now(&self) -> Result<i64, ImageError> {
        let key = format!("clock/{}", self.new_id());
        self.put(&key, Vec::new())?;
        let written = self.head(&key)?.map(|object| object.written);
        self.delete(&key)?;
        let gone = || io::Error::other("what was just written is not there");
        let failed = |error| ImageError::Io { action: format!("look at {key}"), error };
        written.ok_or_else(gone).map_err(failed)
    }

    /// A name that no other process uses.
    pub(crate) fn new_id(&self) -> String {
        let number = self.next_id.fetch_add(1, Relaxed);
        let random = RandomState::new();
        let seed = (std::process::id(), number, self.started.elapsed());
        format!("{:016x}{:016x}", random.hash_one(seed), RandomState::new().hash_one(number))
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropped within another runtime, it must not wait.
            runtime.shutdown_background();
        }
    }
}

/// Parts until there are enough to be sent together, and whether they are the last ones.
fn gather(
    parts: &mut dyn Iterator<Item = Result<Vec<u8>, ImageError>>,
) -> Result<(Vec<u8>, bool), ImageError> {
    let mut bytes = Vec::new();
    while bytes.len() < PART_SIZE {
        match parts.next() {
            Some(part) => bytes.append(&mut part?),
            None => return Ok((bytes, true)),
        }
    }
    Ok((bytes, false))
}

fn listed(meta: &ObjectMeta) -> ListedObject {
    ListedObject {
        name: meta.location.filename().unwrap_or_default().to_owned(),
        size: meta.size,
        written: meta.last_modified.timestamp_millis(),
    }
}
