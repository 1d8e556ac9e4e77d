//! A service that stops answering in the middle of an upload.

use std::future::pending;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use pagefork_objects::object_store;

/// Where an upload of parts stalls for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stall {
    /// Before it has begun.
    Beginning,
    /// At this part, from 0.
    Part(usize),
    /// When all parts are there.
    Completing,
    /// At this part, and when it is taken back.
    PartAndAbort(usize),
}

/// Such a service; all else it does at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stalling {
    inner: Arc<InMemory>,
    stall: Arc<Mutex<Option<Stall>>>,
    /// What uploads have come to, in order.
    seen: Arc<Mutex<Vec<&'static str>>>,
}

impl Stalling {
    /// Has uploads that begin from now on stall there, or nowhere.
    pub(crate) fn stall(&self, stall: Option<Stall>) {
        *self.stall.lock().unwrap() = stall;
    }

    /// What uploads have come to so far.
    pub(crate) fn seen(&self) -> Vec<&'static str> {
        self.seen.lock().unwrap().clone()
    }
}

impl std::fmt::Display for Stalling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a service that stalls")
    }
}

#[async_trait]
impl ObjectStore for Stalling {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, how: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(at, bytes, how).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let stall = *self.stall.lock().unwrap();
        if stall == Some(Stall::Beginning) {
            return pending().await;
        }
        let inner = self.inner.put_multipart_opts(at, how).await?;
        Ok(Box::new(StallingUpload { inner, stall, parts: 0, seen: Arc::clone(&self.seen) }))
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(at, how).await
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, how).await
    }
}

#[derive(Debug)]
struct StallingUpload {
    inner: Box<dyn MultipartUpload>,
    stall: Option<Stall>,
    parts: usize,
    seen: Arc<Mutex<Vec<&'static str>>>,
}

#[async_trait]
impl MultipartUpload for StallingUpload {
    fn put_part(&mut self, bytes: PutPayload) -> UploadPart {
        let number = self.parts;
        self.parts += 1;
        match self.stall {
            Some(Stall::Part(at) | Stall::PartAndAbort(at)) if at == number => Box::pin(pending()),
            _ => {
                self.seen.lock().unwrap().push("part");
                self.inner.put_part(bytes)
            }
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if self.stall == Some(Stall::Completing) {
            return pending().await;
        }
        self.seen.lock().unwrap().push("complete");
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        if matches!(self.stall, Some(Stall::PartAndAbort(_))) {
            return pending().await;
        }
        self.seen.lock().unwrap().push("abort");
        self.inner.abort().await
    }
}
