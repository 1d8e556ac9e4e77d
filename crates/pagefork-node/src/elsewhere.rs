//! Other holders of an image: they are asked when the node that it was wanted of does not give it.

use std::collections::VecDeque;
use std::io::ErrorKind;

use pagefork_image::{ContentHash, ImageError, StoredImage, copy_chain};

use crate::base::NodeError;
use crate::fetch::{self, HeadCheck, own_store};
use crate::pace::{self, Pace, PacedImages};
use crate::place::{ImagePlace, PageHolder};
use crate::start::{FoundImage, ImageSource, StartEvent, StartOptions};

/// What stores call code in their errors.
const CODE: &str = "a code image";

impl ImageSource<'_> {
    /// Has another holder give what this one does not, for which `failed` is the reason. A name means something at the
    /// first one alone: it is enough if that has said what it means. Whom the image names is asked last, if the manifest
    /// has come.
    pub(crate) fn start_elsewhere(&self, failed: NodeError) -> Result<FoundImage, NodeError> {
        let wanted = self.name.parse::<ContentHash>().ok().or(self.found.image());
        let Some(image) = wanted else { return Err(failed) };
        let name = &image.to_string();
        let mut others = VecDeque::from(self.options.others.clone());
        let mut asked = vec![PageHolder::Node(self.peer.clone())];
        let mut tried = vec![(format!("node {}", self.peer.address), failed)];
        while let Some(holder) = others.pop_front().or_else(|| self.found.named().besides(&asked)) {
            if let Some((_, error)) = tried.last() {
                let holder = &holder;
                (self.options.observe)(&StartEvent::Elsewhere { image, error, holder });
            }
            let others = others.iter().cloned().collect();
            // A token is for the first one.
            let options = &StartOptions { others, token: Vec::new(), ..self.options.clone() };
            let coming = self.coming.clone();
            let started = match &holder {
                PageHolder::Node(peer) => {
                    let asked = &asked;
                    ImageSource { peer, name, options, coming, asked, ..*self }.start()
                }
                PageHolder::Place(place) => self.whole_from(place, image).map(FoundImage::Here),
            };
            match started {
                Err(error) if error.is_of_peer() => tried.push((holder.to_string(), error)),
                started => return started,
            }
            asked.push(holder);
        }
        for (holder, why) in self.found.named().unasked(&asked) {
            let (holder, why) = (&holder, &why);
            (self.options.observe)(&StartEvent::NotAsked { image, holder, why });
        }
        match tried.pop() {
            Some((_, failed)) if tried.is_empty() => Err(failed),
            last => {
                tried.extend(last);
                Err(NodeError::Nowhere { image, tried })
            }
        }
    }

    /// Gets all of it out of an object store.
    fn whole_from(&self, place: &ImagePlace, image: ContentHash) -> Result<StoredImage, NodeError> {
        let lost = |why: String| NodeError::PlaceLost { image, place: place.to_string(), why };
        let of_place = |error: ImageError| lost(error.to_string());
        let failed = |error: ImageError| match is_of_own_store(&error) {
            true => own_store(error),
            false => of_place(error),
        };
        let here = fetch::here(self.images, image, self.signers)?;
        // Each answer may be in time, and all of them take for ever. Whoever asks a service may wait for one answer as long
        // as for a node that is lost.
        let times = &self.options.times;
        let (limits, pace) = (self.images.limits(), Pace::new(times.patience.max(times.lost)));
        let images = PacedImages::new(&*place.images, limits, pace, pace::clock());
        let chain = match &here {
            Some(image) => image.chain().clone(),
            // What it says before it is proved is its own matter, however large.
            None => images.open_chain(image).map_err(of_place)?,
        };
        let tip = chain.tip();
        if tip.hash() != image {
            let found = tip.hash();
            return Err(NodeError::OtherImage { wanted: image, found });
        }
        if !tip.signers().iter().any(|signer| self.signers.contains(signer)) {
            let signatures = tip.signers().len();
            return Err(ImageError::NotSigned { image, signatures }.into());
        }
        let needed = self.needed_modules(image, tip.manifest(), here.is_some())?;
        // Until the image that is here has them spared.
        let mut held = needed.held;
        for module in needed.missing {
            let bytes = match images.open_code(module) {
                Ok(bytes) => bytes,
                Err(ImageError::NotFound { .. }) => {
                    return Err(self.refused(image, tip.manifest(), module));
                }
                Err(error) => return Err(of_place(error)),
            };
            let size = bytes.size().map_err(|error| lost(error.to_string()))?;
            let limit = self.images.limits().code_size;
            if size > limit {
                // Nobody has signed how large it is: the next one may say something else.
                let too_large = ImageError::TooLarge { what: "a module", size, limit };
                return Err(of_place(too_large));
            }
            let mut module_bytes = vec![0; size as usize];
            let read = bytes.read_exact_at(&mut module_bytes, 0);
            read.map_err(|error| lost(error.to_string()))?;
            if ContentHash::of(&module_bytes) != module {
                return Err(lost(format!("module {module} has another hash there")));
            }
            held.push(self.images.save_code(&module_bytes).map_err(own_store)?);
        }
        if let Some(image) = here {
            return Ok(image);
        }
        copy_chain(&chain, |code| images.open_code(code), self.images).map_err(failed)?;
        fetch::here(self.images, image, self.signers)?
            .ok_or_else(|| lost("it has not got the image's code".to_owned()))
    }
}

/// Whether what copies images was stopped by where they go to, and not by where they come from. What only one of the two
/// can say is known; of all else the next holder may do better.
fn is_of_own_store(error: &ImageError) -> bool {
    match error {
        ImageError::Io { error, .. } => matches!(
            error.kind(),
            ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::FileTooLarge
                | ErrorKind::ReadOnlyFilesystem
        ),
        // How large the data is stands in the manifest; of code, only who gives it says that.
        ImageError::TooLarge { what, .. } => *what != CODE,
        ImageError::StoreRefused { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_full_disk_here_is_no_failure_of_who_has_the_image() {
        let failed = |kind: ErrorKind| {
            let (action, error) = ("write a file of the store".to_owned(), io::Error::from(kind));
            is_of_own_store(&ImageError::Io { action, error })
        };
        assert!(failed(ErrorKind::StorageFull) && failed(ErrorKind::QuotaExceeded));
        assert!(!failed(ErrorKind::TimedOut) && !failed(ErrorKind::ConnectionReset));
        assert!(is_of_own_store(&ImageError::TooLarge { what: "data", size: 2, limit: 1 }));
        assert!(!is_of_own_store(&ImageError::TooLarge { what: CODE, size: 2, limit: 1 }));
        assert!(!is_of_own_store(&ImageError::NotAnImage));
    }
}
