//! Rounds against a store that is a list, after upstream's published cases.

use std::collections::BTreeSet;

use bulkhead_ipc::syncd::StoredImage;

use super::super::ledger::tests::image;
use super::*;

/// A runtime: images, the file system that they lie on, and what is told.
#[derive(Debug, Default)]
struct Fake {
    images: Mutex<Vec<StoredImage>>,
    fs: Mutex<Option<ImageFs>>,
    /// Cannot be removed, or are used by the time they are to go.
    broken: BTreeSet<&'static str>,
    used_since: BTreeSet<&'static str>,
    removed: Mutex<Vec<(String, ImageCollectionReason)>>,
    reports: Mutex<Vec<ReportImageCollectionRequest>>,
    away: bool,
}

impl ImageStore for Arc<Fake> {
    async fn list(&self) -> Result<Vec<StoredImage>, Status> {
        if self.away {
            return Err(Status::unavailable("away"));
        }
        Ok(self.images.lock().clone())
    }

    async fn remove(&self, request: RemoveImageRequest) -> Result<RemoveImageOutcome, Status> {
        let mut images = self.images.lock();
        let Some(at) = images.iter().position(|image| image.id == request.id) else {
            return Ok(RemoveImageOutcome::Absent);
        };
        let id = request.id.as_str();
        if self.broken.contains(id) {
            return Ok(RemoveImageOutcome::Failed);
        }
        if self.used_since.contains(id) || images[at].last_used_ms > request.last_used_ms {
            return Ok(RemoveImageOutcome::RefusedUsed);
        }
        images.remove(at);
        self.removed.lock().push((request.id.clone(), request.reason()));
        Ok(RemoveImageOutcome::Removed)
    }

    async fn report(&self, request: ReportImageCollectionRequest) -> Result<(), Status> {
        self.reports.lock().push(request);
        Ok(())
    }

    async fn image_fs(&self) -> Option<ImageFs> {
        *self.fs.lock()
    }
}

const POLICY: Policy = Policy { high_percent: 90, low_percent: 80, min_age_ms: 0, max_age_ms: 0 };

fn fake(images: &[StoredImage], available: i64) -> Fake {
    Fake {
        images: Mutex::new(images.to_vec()),
        fs: Mutex::new(Some(ImageFs { capacity: 1000, available })),
        ..Fake::default()
    }
}

fn collector(fake: Fake, policy: Policy) -> (Arc<Fake>, Collector<Arc<Fake>>) {
    let fake = Arc::new(fake);
    (fake.clone(), Collector::with_ledger(fake, policy, Ledger::default(), None))
}

impl Fake {
    fn removed(&self) -> Vec<String> {
        self.removed.lock().iter().map(|(id, _)| id.clone()).collect()
    }

    fn told(&self) -> Vec<ImageCollectionFailureKind> {
        self.reports.lock().iter().map(ReportImageCollectionRequest::kind).collect()
    }
}

#[tokio::test]
async fn rounds_of_upstreams_cases() {
    use ImageCollectionFailureKind as Kind;
    // What is available of 1000, images, which go, what is told.
    type Case<'a> = (i64, Vec<StoredImage>, &'a [&'a str], &'a [Kind]);
    let cases: Vec<Case<'_>> = vec![
        (600, vec![image("a", 450, 0)], &[], &[]),
        (50, vec![image("a", 450, 0)], &["a"], &[]),
        (50, vec![image("a", 50, 0)], &["a"], &[Kind::NotEnough]),
        (50, vec![image("a", 450, 1)], &[], &[Kind::NotEnough]),
        (50, vec![StoredImage { pinned: true, ..image("a", 450, 0) }], &[], &[Kind::NotEnough]),
        (50, vec![image("a", 100, 0), image("b", 100, 0), image("c", 100, 0)], &["a", "b"], &[]),
    ];
    for (available, images, goes, told) in cases {
        let (fake, collector) = collector(fake(&images, available), POLICY);
        collector.round().await;
        assert_eq!((fake.removed(), fake.told()), (goes.iter().map(|id| (*id).to_owned()).collect(), told.to_vec()));
    }
}

#[tokio::test]
async fn what_cannot_be_removed_and_who_uses_it_meanwhile() {
    use ImageCollectionFailureKind as Kind;
    let images = [image("a", 150, 0), image("b", 150, 0)];
    let broken = Fake { broken: ["a"].into(), ..fake(&images, 50) };
    let (broken, one) = collector(broken, POLICY);
    one.round().await;
    assert_eq!((broken.removed(), broken.told()), (vec!["b".to_owned()], vec![Kind::SpaceErrors]));
    let report = broken.reports.lock()[0];
    assert_eq!((report.wanted, report.freed, report.repeated), (150, 150, false));
    one.round().await;
    assert_eq!(broken.told().len(), 1, "once in five minutes");

    let used = Fake { used_since: ["a"].into(), ..fake(&images, 50) };
    let (used, one) = collector(used, POLICY);
    one.round().await;
    assert_eq!((used.removed(), used.told()), (vec!["b".to_owned()], vec![]), "the next one goes instead");

    let (nothing, one) =
        collector(Fake { fs: Mutex::new(Some(ImageFs { capacity: 0, available: 0 })), ..Fake::default() }, POLICY);
    one.round().await;
    assert_eq!(nothing.told(), [Kind::NoCapacity]);

    // Nobody answers: soon again, and nothing is said of it yet.
    for away in [Fake { away: true, ..fake(&images, 50) }, Fake { fs: Mutex::default(), ..fake(&images, 50) }] {
        let (away, one) = collector(away, POLICY);
        let due = one.round().await;
        assert!(due <= now_ms() + 5_000, "{}", due - now_ms());
        assert!(away.told().is_empty() && away.removed().is_empty());
    }
}

#[tokio::test]
async fn the_young_stay_and_are_waited_for() {
    let policy = Policy { min_age_ms: 60_000, ..POLICY };
    let (fake, collector) = collector(fake(&[image("a", 450, 0)], 50), policy);
    let due = collector.round().await;
    assert!(fake.removed().is_empty() && fake.told().is_empty(), "{:?}", fake.told());
    assert!(due <= now_ms() + 60_000 && due > now_ms() + 50_000, "when it comes of age");
    assert_eq!(collector.delete_unused().await.unwrap().removed.images, 0, "under pressure, too");
    collector.work.lock().await.ledger.images.get_mut("a").unwrap().first_detected_ms -= 60_000;
    collector.round().await;
    assert_eq!(fake.removed(), ["a"]);
}

#[tokio::test]
async fn the_old_go_and_all_that_is_unused_under_pressure() {
    let policy = Policy { max_age_ms: 1_000, ..POLICY };
    let images = [image("never", 1, 0), image("used", 1, 1), image("late", 1, 0)];
    let (fake, mut one) = collector(fake(&images, 900), policy);
    let due = one.round().await;
    assert!(fake.removed().is_empty(), "it has not watched for long enough");
    assert!(due <= now_ms() + 1_001, "but soon");
    one.began_ms -= 2_000;
    one.work.lock().await.ledger.images.get_mut("late").unwrap().last_used_ms = Some(now_ms());
    one.round().await;
    assert_eq!(*fake.removed.lock(), [("never".to_owned(), ImageCollectionReason::Age)]);

    let reclaimed = one.delete_unused().await.unwrap();
    assert_eq!((fake.removed(), reclaimed.removed.bytes), (vec!["never".to_owned(), "late".to_owned()], 1));
    assert!(!reclaimed.goes_on(), "nothing is left to go");
    let off = Policy { high_percent: 100, ..POLICY };
    let (fake, one) = collector(self::fake(&images, 0), off);
    one.round().await;
    assert!(fake.removed().is_empty() && fake.told().is_empty(), "turned off");
    assert_eq!(one.delete_unused().await.unwrap().removed.images, 2, "but for disk pressure");
}
