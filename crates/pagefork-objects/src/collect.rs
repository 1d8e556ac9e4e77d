//! Collection in two steps: what nothing leads to is condemned, and removed later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use pagefork_image::{CollectReport, ContentHash, ImageError, ImageReader, ImageRepository};

use crate::objects::ListedObject;
use crate::{ObjectBytes, ObjectImages, ObjectKind};

/// What an image needs.
struct Needed {
    parent: Option<ContentHash>,
    code: Vec<ContentHash>,
}

impl ObjectImages {
    /// Condemns what nothing leads to, and removes what was condemned long enough ago.
    pub(crate) fn collect_unused(&self) -> Result<CollectReport, ImageError> {
        let begun = Instant::now();
        let now = self.objects.now()?;
        let mut report = CollectReport::default();
        let images = self.listed(ObjectKind::Image)?;
        let needs = self.needs(&images, &mut report)?;

        let (mut kept, mut code_kept) = (BTreeSet::new(), BTreeSet::new());
        for (name, hash) in self.names()? {
            if !images.contains_key(&hash)
                && self.objects.head(&ObjectKind::Image.key(hash))?.is_none()
            {
                // What it was to keep must not go for that.
                return Err(ImageError::Damaged(format!(
                    "the name {name:?} leads to image {hash}, which is not there: give the name to \
                     an image, or remove it"
                )));
            }
            keep(&mut kept, hash, &needs);
        }
        let named = kept.clone();
        for hash in self.leased(ObjectKind::Image, now)? {
            keep(&mut kept, hash, &needs);
        }
        report.in_use = kept.difference(&named).copied().collect();
        report.in_use.retain(|hash| needs.contains_key(hash));
        let of_kept = needs.iter().filter(|(hash, _)| kept.contains(hash));
        code_kept.extend(of_kept.flat_map(|(_, needed)| needed.code.iter().copied()));
        code_kept.extend(self.leased(ObjectKind::Code, now)?);
        // Images that cannot be read stay, as what they are is not known.
        kept.extend(report.damaged.iter().map(|(hash, _)| *hash));

        // A child goes before its parent: those that are far from a full image first.
        let depth = |hash: &ContentHash| {
            let mut depth = 0;
            let mut next = needs.get(hash).and_then(|needed| needed.parent);
            while let Some(hash) = next.filter(|_| depth < needs.len()) {
                depth += 1;
                next = needs.get(&hash).and_then(|needed| needed.parent);
            }
            depth
        };
        let mut order: Vec<_> = images.into_iter().collect();
        order.sort_by_key(|(hash, _)| std::cmp::Reverse(depth(hash)));
        for (hash, object) in order {
            let is_kept = kept.contains(&hash);
            if self.sweep(ObjectKind::Image, hash, &object, is_kept, now, begun)? {
                report.bytes += object.size;
                report.images.push(hash);
            }
        }
        for (hash, object) in self.listed(ObjectKind::Code)? {
            let is_kept = code_kept.contains(&hash);
            if self.sweep(ObjectKind::Code, hash, &object, is_kept, now, begun)? {
                report.bytes += object.size;
                report.code.push(hash);
            }
        }
        Ok(report)
    }

    /// What one object comes to. Returns whether it was removed.
    fn sweep(
        &self,
        kind: ObjectKind,
        hash: ContentHash,
        object: &ListedObject,
        is_kept: bool,
        now: i64,
        begun: Instant,
    ) -> Result<bool, ImageError> {
        let grace = self.settings.grace.as_millis() as i64;
        let mark = self.objects.head(&kind.mark(hash))?;
        match mark {
            Some(_) if is_kept => self.objects.delete(&kind.mark(hash)).map(|()| false),
            // It may have been put in by somebody who is about to name it.
            None if !is_kept && now - object.written >= grace => {
                self.objects.put(&kind.mark(hash), Vec::new()).map(|()| false)
            }
            // Leases that were made since the list of them was read are only seen by the next
            // collection, which is why this one must not take long.
            Some(mark)
                if now - mark.written >= grace
                    && (grace == 0 || begun.elapsed() < self.settings.grace / 4) =>
            {
                self.objects.delete(&kind.key(hash))?;
                self.objects.delete(&kind.mark(hash))?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn listed(&self, kind: ObjectKind) -> Result<BTreeMap<ContentHash, ListedObject>, ImageError> {
        let objects = self.objects.list(kind.folder())?;
        let named = |object: ListedObject| Some((object.name.parse().ok()?, object));
        Ok(objects.into_iter().filter_map(named).collect())
    }

    /// What somebody uses; leases that have ended are removed.
    fn leased(&self, kind: ObjectKind, now: i64) -> Result<BTreeSet<ContentHash>, ImageError> {
        let lease = self.settings.lease.as_millis() as i64;
        let mut leased = BTreeSet::new();
        for object in self.objects.list(&format!("leases/{}", kind.folder()))? {
            let hash = object.name.split('.').next().and_then(|hash| hash.parse().ok());
            match hash {
                Some(hash) if now - object.written <= lease => drop(leased.insert(hash)),
                _ => self.objects.delete(&format!("leases/{}/{}", kind.folder(), object.name))?,
            }
        }
        Ok(leased)
    }

    /// What images need, by their manifests.
    fn needs(
        &self,
        images: &BTreeMap<ContentHash, ListedObject>,
        report: &mut CollectReport,
    ) -> Result<BTreeMap<ContentHash, Needed>, ImageError> {
        let mut needs = BTreeMap::new();
        for (hash, object) in images {
            let bytes = ObjectBytes::unleased(self, ObjectKind::Image, *hash, object.size);
            match ImageReader::open(Box::new(bytes), &self.settings.limits) {
                Ok(image) => {
                    let manifest = image.manifest();
                    let code = [manifest.codes(), manifest.modules()].concat();
                    needs.insert(*hash, Needed { parent: manifest.parent, code });
                }
                Err(error @ (ImageError::Damaged(_) | ImageError::NotAnImage)) => {
                    report.damaged.push((*hash, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(needs)
    }
}

/// Notes that an image and its ancestors stay.
fn keep(
    kept: &mut BTreeSet<ContentHash>,
    hash: ContentHash,
    needs: &BTreeMap<ContentHash, Needed>,
) {
    let mut next = Some(hash);
    while let Some(hash) = next.filter(|hash| kept.insert(*hash)) {
        next = needs.get(&hash).and_then(|needed| needed.parent);
    }
}
