use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use bulkhead_types::NodeName;
use tokio::sync::mpsc;

use super::fs_store::FsStore;
use super::*;
use crate::sources::uids::{Forgetful, FoundPod, UidBook, UidStore, UidStoreError};
use kubelet_model::pod::hash::container_hash;
use kubelet_model::pod::source::SourceKind;
use kubelet_model::validation::field::text;

const NODE: &str = "node-a";

fn manifest(name: &str, command: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: i\n    \
         command: [{command}]\n"
    )
}

#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<UidBook>>);

impl UidStore for Shelf {
    fn load(&self) -> Result<UidBook, UidStoreError> {
        Ok(self.0.lock().clone())
    }

    fn save(&self, book: &UidBook) -> Result<(), UidStoreError> {
        *self.0.lock() = book.clone();
        Ok(())
    }
}

enum Heard {
    Set(Vec<Pod>),
    Again(PodUid, Absence),
    Errors(Vec<String>),
}

struct Ear(mpsc::UnboundedSender<Heard>);

impl SetSink for Ear {
    async fn set(&mut self, pods: Vec<Pod>) -> bool {
        self.0.send(Heard::Set(pods)).is_ok()
    }

    async fn again(&mut self, uid: PodUid, absence: Absence) -> bool {
        self.0.send(Heard::Again(uid, absence)).is_ok()
    }

    fn errors(&mut self, errors: Vec<String>) {
        let _ = self.0.send(Heard::Errors(errors));
    }
}

struct Source {
    heard: mpsc::UnboundedReceiver<Heard>,
    set: Vec<Pod>,
    sets: usize,
    again: Vec<(PodUid, Absence)>,
    errors: Vec<String>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Source {
    fn start(path: &Path, watched: bool, uids: Uids) -> Self {
        let (tx, heard) = mpsc::unbounded_channel();
        // Where a test watches, the re-scan stays out of the way; where it does not, the re-scan does the work.
        let check_every = if watched { Duration::from_secs(3600) } else { Duration::from_millis(20) };
        let config = FileConfig { path: path.to_owned(), check_every };
        let store = FsStore::new(path, watched);
        let node = NodeName::parse(NODE).unwrap().into();
        let task = tokio::spawn(run(config, node, Arc::new(Mutex::new(uids)), store, Ear(tx)));
        Source { heard, set: Vec::new(), sets: 0, again: Vec::new(), errors: Vec::new(), task }
    }

    fn watching(path: &Path) -> Self {
        Self::start(path, true, Uids::new(Box::new(Forgetful), Vec::new()))
    }

    async fn hear(&mut self, what: &str) {
        let heard = tokio::time::timeout(Duration::from_secs(10), self.heard.recv()).await;
        match heard.unwrap_or_else(|_| panic!("waiting for {what}; pods {:?}, errors {:?}", self.names(), self.errors))
        {
            Some(Heard::Set(set)) => {
                self.set = set;
                self.sets += 1;
            }
            Some(Heard::Again(uid, absence)) => self.again.push((uid, absence)),
            Some(Heard::Errors(errors)) => self.errors = errors,
            None => panic!("the source ended"),
        }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.set.iter().map(|p| text(&p.metadata.name).to_owned()).collect();
        names.sort();
        names
    }

    async fn until_names(&mut self, names: &[&str]) {
        while self.sets == 0 || self.names() != names {
            self.hear(&format!("pods {names:?}")).await;
        }
    }

    async fn until_error(&mut self, part: &str) {
        while !self.errors.iter().any(|e| e.contains(part)) {
            self.hear(&format!("error {part:?}")).await;
        }
    }

    async fn until_no_error(&mut self) {
        while !self.errors.is_empty() {
            self.hear("no error").await;
        }
    }

    fn uid(&self, name: &str) -> String {
        let pod = self.set.iter().find(|p| text(&p.metadata.name) == name).unwrap();
        text(&pod.metadata.uid).to_owned()
    }

    fn command(&self, name: &str) -> String {
        let pod = self.set.iter().find(|p| text(&p.metadata.name) == name).unwrap();
        pod.spec.as_ref().unwrap().containers[0].command.as_ref().unwrap().join(" ")
    }

    async fn until_command(&mut self, name: &str, command: &str) {
        while self.command(name) != command {
            self.hear(&format!("{name} to run {command}")).await;
        }
    }
}

fn write(folder: &Path, name: &str, content: &str) {
    std::fs::write(folder.join(name), content).unwrap();
}

#[tokio::test]
async fn a_folder_lives() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "b.yaml", &manifest("b", "x"));
    write(folder, ".hidden.yaml", &manifest("hidden", "x"));
    std::fs::create_dir(folder.join("sub")).unwrap();
    write(&folder.join("sub"), "s.yaml", &manifest("s", "x"));
    nix::unistd::mkfifo(&folder.join("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    std::fs::write(folder.join(std::ffi::OsStr::from_bytes(b"caf\xe9.yaml")), manifest("latin", "x")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    write(elsewhere.path(), "target", &manifest("linked", "x"));
    symlink(elsewhere.path().join("target"), folder.join("link")).unwrap();

    let mut source = Source::watching(folder);
    source.until_names(&["b-node-a", "linked-node-a"]).await;
    assert_eq!(source.sets, 1, "one complete set, not one for each file");
    source.until_error("sub: a directory; manifests in it are not read").await;
    source.until_error("pipe: not a directory or file").await;
    source.until_error("caf\u{fffd}.yaml: the file's name is not UTF-8; it is not read").await;

    write(folder, "a.yaml", &manifest("a", "x"));
    source.until_names(&["a-node-a", "b-node-a", "linked-node-a"]).await;
    let (before, untouched) = (source.uid("a-node-a"), source.uid("b-node-a"));
    write(folder, "a.yaml", &manifest("a", "why"));
    source.until_command("a-node-a", "why").await;
    assert_ne!(source.uid("a-node-a"), before, "an edited file is another pod");
    assert_eq!(source.uid("b-node-a"), untouched);

    // As a careful writer does it: a temporary name with a dot, then a rename.
    write(folder, ".a.tmp", &manifest("a", "z"));
    std::fs::rename(folder.join(".a.tmp"), folder.join("a.yaml")).unwrap();
    source.until_command("a-node-a", "z").await;
    std::fs::remove_file(folder.join("b.yaml")).unwrap();
    source.until_names(&["a-node-a", "linked-node-a"]).await;
    std::fs::rename(folder.join("a.yaml"), elsewhere.path().join("away")).unwrap();
    source.until_names(&["linked-node-a"]).await;
}

#[tokio::test]
async fn a_broken_file_never_takes_its_pod_away() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let good = manifest("a", "x");
    write(folder, "a.yaml", &good);
    let mut source = Source::watching(folder);
    source.until_names(&["a-node-a"]).await;
    let uid = source.uid("a-node-a");
    for (bad, part) in [
        ("", "empty"),
        ("apiVersion: v1\nkind: Po", "holds v1 Po"),
        (&good[..good.len() / 2], "invalid pod"),
        ("\t{[", "neither YAML nor JSON"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: A}\nspec: {containers: [{name: c, image: i}]}", "invalid pod"),
    ] {
        write(folder, "a.yaml", bad);
        source.until_error(part).await;
        assert_eq!(source.errors.len(), 1, "{:?}", source.errors);
        assert!(source.errors[0].ends_with("; the pod stays as it was"), "{:?}", source.errors);
        assert_eq!(source.names(), ["a-node-a"], "after {bad:?}");
        assert_eq!(source.sets, 1, "nothing has changed for the consumer");
    }
    write(folder, "a.yaml", &good);
    source.until_no_error().await;
    assert_eq!((source.sets, source.uid("a-node-a")), (1, uid));
    write(folder, "a.yaml", "broken: [");
    source.until_error("neither YAML").await;
    std::fs::remove_file(folder.join("a.yaml")).unwrap();
    source.until_names(&[]).await;
    source.until_no_error().await;
}

/// Upstream's mirror_pod_test.go, "should successfully recreate when file is removed and recreated".
#[tokio::test]
async fn a_removed_file_that_is_written_again_at_once_is_another_life_of_its_pod() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let content = manifest("a", "x");
    write(folder, "a.yaml", &content);
    let mut source = Source::watching(folder);
    source.until_names(&["a-node-a"]).await;
    let uid = source.uid("a-node-a");
    std::fs::remove_file(folder.join("a.yaml")).unwrap();
    write(folder, "a.yaml", &content);
    while source.again.is_empty() && source.sets == 1 {
        source.hear("the pod again").await;
    }
    // Where the disk was so slow that it was away for too long, it has been removed and added by now.
    let told: Vec<_> = source.again.iter().map(|(uid, absence)| (uid.as_str(), *absence)).collect();
    assert!(source.sets > 1 || told == [(&*uid, Absence::Removed)], "{told:?}");
    source.until_names(&["a-node-a"]).await;

    // As a careful writer does it: nobody took it away.
    source.again.clear();
    write(folder, ".a.tmp", &content);
    std::fs::rename(folder.join(".a.tmp"), folder.join("a.yaml")).unwrap();
    write(folder, "z.yaml", &manifest("z", "x"));
    source.until_names(&["a-node-a", "z-node-a"]).await;
    assert_eq!((source.again.len(), source.uid("a-node-a")), (0, uid));
}

#[tokio::test]
async fn slow_writers_and_editors() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "a.yaml", &manifest("a", "x"));
    let mut source = Source::watching(folder);
    source.until_names(&["a-node-a"]).await;
    let uid = source.uid("a-node-a");

    // vim: a test file, the old one moved to a backup name, the new one written, the backup deleted.
    write(folder, "4913", "");
    std::fs::remove_file(folder.join("4913")).unwrap();
    std::fs::rename(folder.join("a.yaml"), folder.join("a.yaml~")).unwrap();
    write(folder, "a.yaml", &manifest("a", "x"));
    std::fs::remove_file(folder.join("a.yaml~")).unwrap();
    // A backup copy that stays, sorted behind the original.
    write(folder, "a.yaml~", &manifest("a", "old"));
    source.until_error("a.yaml~: ignored, ").await;
    assert_eq!((source.uid("a-node-a"), source.command("a-node-a")), (uid, "x".to_owned()));

    // Another pod, to be sure that everything before it has been looked at.
    write(folder, "z.yaml", &manifest("z", "x"));
    source.until_names(&["a-node-a", "z-node-a"]).await;
    assert_eq!(source.command("a-node-a"), "x");

    // A writer that is slow, with a valid prefix on the way: one change in the end.
    let text = format!("{}    tty: true\n", manifest("z", "why"));
    let cut = text.len() - "    tty: true\n".len();
    let sets = source.sets;
    use std::io::Write as _;
    let mut file = std::fs::File::create(folder.join("z.yaml")).unwrap();
    file.write_all(&text.as_bytes()[..cut]).unwrap();
    tokio::task::yield_now().await;
    file.write_all(&text.as_bytes()[cut..]).unwrap();
    drop(file);
    source.until_command("z-node-a", "why").await;
    let pod = source.set.iter().find(|p| text_of(p) == "z-node-a").unwrap();
    assert_eq!(pod.spec.as_ref().unwrap().containers[0].tty, Some(true));
    assert_eq!(source.sets, sets + 1);
}

fn text_of(pod: &Pod) -> &str {
    text(&pod.metadata.name)
}

#[tokio::test]
async fn without_a_watch_the_rescan_finds_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let mut source = Source::start(&path, false, Uids::new(Box::new(Forgetful), Vec::new()));
    source.until_names(&[]).await;
    source.until_error("does not exist, ignoring").await;
    std::fs::create_dir(&path).unwrap();
    write(&path, "a", &manifest("a", "x"));
    source.until_names(&["a-node-a"]).await;
    source.until_no_error().await;
    write(&path, "a", &manifest("a", "why"));
    source.until_command("a-node-a", "why").await;
    std::fs::remove_file(path.join("a")).unwrap();
    source.until_names(&[]).await;

    std::fs::remove_dir(&path).unwrap();
    write(folder.path(), "m", &manifest("single", "x"));
    source.until_names(&["single-node-a"]).await;
    write(folder.path(), "m", "broken: [");
    source.until_error("the pod stays as it was").await;
    assert_eq!(source.names(), ["single-node-a"]);
    // A missing path is an empty set, once it is still missing a second later.
    std::fs::remove_file(&path).unwrap();
    source.until_names(&[]).await;
}

#[tokio::test]
async fn the_last_good_pod_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let shelf = Shelf::default();
    let uids = || Uids::new(Box::new(shelf.clone()), Vec::new());
    write(folder, "a.yaml", &manifest("a", "x"));
    write(folder, "b.yaml", &manifest("b", "x"));
    let mut first = Source::start(folder, true, uids());
    first.until_names(&["a-node-a", "b-node-a"]).await;
    let uid = first.uid("a-node-a");
    write(folder, "a.yaml", "half: {");
    first.until_error("a.yaml").await;
    drop(first);
    std::fs::remove_file(folder.join("b.yaml")).unwrap();

    let mut second = Source::start(folder, true, uids());
    second.until_names(&["a-node-a"]).await;
    assert_eq!(second.sets, 1, "the first set holds it already");
    assert_eq!(second.uid("a-node-a"), uid);
    second.until_error("the pod stays as it was").await;
    write(folder, "a.yaml", &manifest("a", "why"));
    second.until_command("a-node-a", "why").await;
}

/// The folder alone, fed by hand and with a clock of its own.
fn by_hand() -> (Folder, Instant) {
    let uids = Arc::new(Mutex::new(Uids::new(Box::new(Forgetful), Vec::new())));
    (Folder::new(Path::new("/m/"), NodeName::parse(NODE).unwrap().into(), uids), Instant::now())
}

fn listing(device: u64, names: &[(&str, EntryKind)]) -> Result<Listing, StoreError> {
    let entries = names.iter().map(|(name, kind)| Entry { name: (*name).to_owned(), kind: *kind }).collect();
    Ok(Listing::Folder { device, entries })
}

fn bytes(text: &str) -> Result<Content, StoreError> {
    Ok(Content::Bytes(text.as_bytes().to_vec()))
}

fn denied() -> StoreError {
    StoreError { doing: "open", name: "x".to_owned(), source: std::io::ErrorKind::PermissionDenied.into() }
}

#[test]
fn a_folder_that_cannot_be_read_or_is_unmounted_keeps_its_pods() {
    let (mut folder, now) = by_hand();
    let names = folder
        .listed(listing(1, &[("b", EntryKind::Regular), ("a", EntryKind::Link), (".c", EntryKind::Regular)]), now);
    assert_eq!(names, ["a", "b"], "sorted, without the dot file");
    folder.read("a", bytes(&manifest("a", "x")), now);
    folder.read("b", bytes(&manifest("b", "x")), now);
    assert_eq!(folder.take_set(now).unwrap().len(), 2);
    assert!(folder.take_set(now).is_none(), "once");

    assert!(folder.listed(Err(denied()), now).is_empty());
    assert!(folder.take_set(now).is_none());
    assert!(folder.errors()[0].contains("keeping the pods as they are"), "{:?}", folder.errors());
    assert!(folder.listed(listing(2, &[]), now).is_empty());
    assert!(folder.take_set(now).is_none(), "another file system with nothing on it: unmounted");
    assert!(folder.errors()[0].contains("on another file system"), "{:?}", folder.errors());

    // One file alone that cannot be opened.
    folder.listed(listing(1, &[("a", EntryKind::Regular), ("b", EntryKind::Regular)]), now);
    folder.read("a", Err(denied()), now);
    folder.read("b", bytes(&manifest("b", "x")), now);
    assert!(folder.take_set(now).is_none());
    assert_eq!(folder.errors().len(), 1);

    // Emptied on the file system where it was: empty.
    folder.listed(listing(1, &[]), now);
    assert_eq!(folder.take_set(now).unwrap().len(), 0);
}

#[test]
fn the_first_set_waits_for_a_file_that_could_not_be_read() {
    let (mut folder, now) = by_hand();
    folder.listed(Err(denied()), now);
    assert!(folder.take_set(now).is_none());
    let later = folder.next_due().unwrap();
    assert!(folder.relist_due(later));
    folder.listed(listing(1, &[("a", EntryKind::Regular), ("b", EntryKind::Regular)]), later);
    folder.read("a", Err(denied()), later);
    folder.read("b", bytes(&manifest("b", "x")), later);
    assert!(folder.take_set(later).is_none());
    let retry = folder.next_due().unwrap();
    assert_eq!(folder.due(retry), ["a"]);
    folder.read("a", Err(denied()), retry);
    assert_eq!(folder.take_set(retry).unwrap().len(), 1, "tried twice: the others need not wait any longer");
}

/// After upstream's kubelet: nothing is known of any file, and a pod of `web` runs.
fn after_upstream(store: Shelf) -> (Folder, Instant) {
    let containers = vec![("c".to_owned(), container_hash("c", "i"))];
    let (namespace, name) = ("default".to_owned(), format!("web-{NODE}"));
    let web = FoundPod { uid: "theirs".to_owned(), namespace, name, source: SourceKind::File, runs: true, containers };
    let uids = Arc::new(Mutex::new(Uids::new(Box::new(store), vec![web])));
    (Folder::new(Path::new("/m"), NodeName::parse(NODE).unwrap().into(), uids), Instant::now())
}

/// The first set; `content` is what reading `web` gives, again and again where it is trouble.
fn first_set(folder: &mut Folder, kind: EntryKind, content: impl Fn() -> Result<Content, StoreError>) -> Vec<Pod> {
    let mut now = Instant::now();
    for name in folder.listed(listing(1, &[("other", EntryKind::Regular), ("web", kind)]), now) {
        let content = if name == "web" { content() } else { bytes(&manifest("other", "x")) };
        folder.read(&name, content, now);
    }
    let mut set = folder.take_set(now);
    while let Some(at) = folder.next_due() {
        now = at;
        for name in folder.due(now) {
            folder.read(&name, content(), now);
        }
        set = set.or_else(|| folder.take_set(now));
    }
    set.unwrap()
}

#[test]
fn what_upstream_may_have_taken_and_we_could_not_is_told_with_the_set() {
    let invalid = || bytes(&manifest("Not_A_Name", "x"));
    type Case = (&'static str, EntryKind, fn() -> Result<Content, StoreError>, &'static str);
    #[rustfmt::skip]
    let cases: [Case; 8] = [
        // what stands there, what reading it gives, what is told of it
        ("not root's",       EntryKind::Regular,   || Err(denied()),                "/m/web: failed to open"),
        ("no pod",           EntryKind::Regular,   || bytes("x: ["),                "/m/web: couldn't parse as pod"),
        ("invalid",          EntryKind::Regular,   invalid,                         "/m/web: invalid pod"),
        ("no UTF-8",         EntryKind::Unnamable, || Ok(Content::Missing),         "/m/web: the file's name is not UTF-8"),
        ("taken",            EntryKind::Regular,   || bytes(&manifest("web", "x")), ""),
        // Upstream passes these over as well.
        ("a folder",         EntryKind::Folder,    || Ok(Content::Folder),          ""),
        ("a pipe",           EntryKind::Other,     || Ok(Content::NotRegular),      ""),
        ("a link to nothing", EntryKind::Link,     || Ok(Content::Missing),         ""),
    ];
    for (case, kind, content, told) in cases {
        let (mut folder, _) = after_upstream(Shelf::default());
        let set = first_set(&mut folder, kind, content);
        assert!(set.iter().any(|pod| text_of(pod) == "other-node-a"), "{case}");
        let untaken = folder.untaken();
        assert_eq!(untaken.len(), usize::from(!told.is_empty()), "{case}: {untaken:?}");
        assert!(untaken.iter().all(|why| why.starts_with(told)), "{case}: {untaken:?}");
    }
    // One of which there is a record has its pod.
    let shelf = Shelf::default();
    first_set(&mut after_upstream(shelf.clone()).0, EntryKind::Regular, || bytes(&manifest("web", "x")));
    let (mut folder, _) = after_upstream(shelf);
    let set = first_set(&mut folder, EntryKind::Regular, || Err(denied()));
    assert_eq!((set.len(), folder.untaken().len()), (2, 0));
}

#[test]
fn what_is_not_taken_is_told_though_the_error_was_told_before() {
    let (mut folder, now) = after_upstream(Shelf::default());
    first_set(&mut folder, EntryKind::Regular, || bytes("x: ["));
    let later = now + Duration::from_secs(10);
    // It gives no set and no other error that it is a folder now, while another file is being read.
    folder.read("web", Ok(Content::Folder), later);
    folder.touched("other", later);
    assert!(folder.take_set(later).is_none() && folder.take_errors_changed());
    folder.due(later);
    folder.read("other", bytes(&manifest("other", "x")), later);
    assert!(folder.take_set(later).is_some(), "the set is told anew");
    assert!(folder.untaken().is_empty(), "{:?}", folder.untaken());
    assert!(folder.take_set(later).is_none());
}

#[test]
fn a_file_that_could_not_be_read_goes_on_with_its_pod_once_it_can() {
    let unreadable = || Err(denied());
    let invalid = || bytes("x: [");
    type Read = Result<Content, StoreError>;
    type Case<'a> = (&'a str, &'a dyn Fn() -> Read, Option<Read>, Option<&'a str>);
    #[rustfmt::skip]
    let cases: [Case<'_>; 4] = [
        // how it was, what it becomes, the uid of its pod
        ("made root's",          &unreadable, Some(bytes(&manifest("web", "x"))), Some("theirs")),
        ("mended by an edit",    &invalid,    Some(bytes(&manifest("web", "x"))), None),
        ("removed",              &unreadable, None,                               None),
        ("removed when refused", &invalid,    None,                               None),
    ];
    for (case, before, after, uid) in cases {
        let (mut folder, now) = after_upstream(Shelf::default());
        first_set(&mut folder, EntryKind::Regular, before);
        let later = now + Duration::from_secs(10);
        let is_there = after.is_some();
        if let Some(content) = after {
            folder.touched("web", later);
            folder.due(later);
            folder.read("web", content, later);
        } else {
            folder.gone("web", Absence::Removed, later);
            folder.due(later + Duration::from_secs(1));
        }
        let set = folder.take_set(later + Duration::from_secs(1)).expect(case);
        assert!(folder.untaken().is_empty(), "{case}");
        let web = set.iter().find(|pod| text_of(pod) == "web-node-a").map(|pod| text(&pod.metadata.uid));
        assert_eq!(web.is_some(), is_there, "{case}");
        assert_eq!(web.filter(|uid| *uid == "theirs"), uid, "{case}");
    }
}

#[test]
fn an_edit_is_taken_when_it_has_stood_still() {
    let (mut folder, now) = by_hand();
    let ms = Duration::from_millis;
    folder.listed(listing(1, &[("a", EntryKind::Regular)]), now);
    folder.read("a", bytes(&manifest("a", "x")), now);
    folder.take_set(now).unwrap();
    // Two events for one half of the text, then the rest.
    for at in [now + ms(1), now + ms(2)] {
        folder.touched("a", at);
        folder.read("a", bytes(&manifest("a", "half")), at);
        assert!(folder.take_set(at).is_none());
    }
    let at = now + ms(50);
    folder.read("a", bytes(&manifest("a", "whole")), at);
    assert_eq!(folder.next_due(), Some(at + ms(100)));
    folder.read("a", bytes(&manifest("a", "whole")), at + ms(99));
    assert!(folder.take_set(at + ms(99)).is_none());
    assert_eq!(folder.due(at + ms(100)), ["a"]);
    folder.read("a", bytes(&manifest("a", "whole")), at + ms(100));
    let set = folder.take_set(at + ms(100)).unwrap();
    assert_eq!(set[0].spec.as_ref().unwrap().containers[0].command.as_ref().unwrap(), &["whole"]);
    // Written back to what it was: nothing to do.
    folder.read("a", bytes(&manifest("a", "x")), at + ms(200));
    folder.read("a", bytes(&manifest("a", "whole")), at + ms(210));
    folder.due(at + ms(400));
    assert!(folder.take_set(at + ms(400)).is_none());
}

#[test]
fn what_was_away_for_a_moment_is_told() {
    let (mut folder, now) = by_hand();
    let ms = Duration::from_millis;
    folder.listed(listing(1, &[("a", EntryKind::Regular)]), now);
    folder.read("a", bytes(&manifest("a", "x")), now);
    let uid = folder.take_set(now).unwrap()[0].metadata.uid.clone().unwrap();
    let again = |folder: &mut Folder| -> Vec<(String, Absence)> {
        folder.take_again().into_iter().map(|(uid, absence)| (uid.to_string(), absence)).collect()
    };
    // Written over: nobody took it away.
    folder.touched("a", now);
    folder.read("a", bytes(&manifest("a", "x")), now);
    assert!(again(&mut folder).is_empty());
    // Another manifest for the same pod, with the first half read on the way.
    folder.gone("a", Absence::MovedAway, now + ms(1));
    folder.touched("a", now + ms(2));
    folder.read("a", bytes("apiVersion: ["), now + ms(2));
    assert!(again(&mut folder).is_empty());
    folder.touched("a", now + ms(3));
    folder.read("a", bytes(&manifest("a", "x")), now + ms(3));
    assert_eq!(again(&mut folder), [(uid.clone(), Absence::MovedAway)]);
    assert!(again(&mut folder).is_empty() && folder.take_set(now + ms(50)).is_none());
    // Its name was removed, whatever else was seen of it: half written, and moved.
    folder.gone("a", Absence::Removed, now + ms(51));
    folder.touched("a", now + ms(52));
    folder.read("a", bytes(""), now + ms(52));
    folder.gone("a", Absence::MovedAway, now + ms(53));
    folder.touched("a", now + ms(54));
    folder.read("a", Ok(Content::Missing), now + ms(54));
    folder.touched("a", now + ms(55));
    folder.read("a", bytes(&manifest("a", "x")), now + ms(55));
    assert_eq!(again(&mut folder), [(uid, Absence::Removed)]);
    assert!(again(&mut folder).is_empty() && folder.take_set(now + ms(59)).is_none());
    // Away for longer: gone, and then new.
    folder.gone("a", Absence::MovedAway, now + ms(60));
    folder.due(now + ms(85));
    assert_eq!(folder.take_set(now + ms(85)).unwrap().len(), 0);
    folder.touched("a", now + ms(90));
    folder.due(now + ms(90));
    folder.read("a", bytes(&manifest("a", "x")), now + ms(90));
    assert_eq!(folder.take_set(now + ms(90)).unwrap().len(), 1);
    assert!(again(&mut folder).is_empty());
}

#[test]
fn a_missing_path_is_believed_after_a_second() {
    let (mut folder, now) = by_hand();
    folder.listed(listing(1, &[("a", EntryKind::Regular)]), now);
    folder.read("a", bytes(&manifest("a", "x")), now);
    assert_eq!(folder.take_set(now).unwrap().len(), 1);
    folder.listed(Ok(Listing::Missing), now);
    assert!(folder.take_set(now).is_none());
    let later = folder.next_due().unwrap();
    assert!(folder.relist_due(later));
    folder.listed(Ok(Listing::Missing), later);
    assert_eq!(folder.take_set(later).unwrap().len(), 0);

    let (mut fresh, now) = by_hand();
    assert!(fresh.take_set(now).is_none(), "not looked at yet is not empty");
    fresh.listed(Ok(Listing::Missing), now);
    assert_eq!(fresh.take_set(now).unwrap().len(), 0, "missing from the start: at once");
}

#[test]
fn a_link_to_nothing_is_given_a_second() {
    let (mut folder, now) = by_hand();
    folder.listed(listing(1, &[("a", EntryKind::Link)]), now);
    folder.read("a", bytes(&manifest("a", "x")), now);
    folder.take_set(now).unwrap();
    folder.listed(listing(1, &[("a", EntryKind::Link)]), now);
    folder.read("a", Ok(Content::Missing), now);
    assert!(folder.take_set(now).is_none());
    let later = folder.next_due().unwrap();
    folder.due(later);
    assert_eq!(folder.take_set(later).unwrap().len(), 0);
}

#[test]
fn a_file_that_is_away_for_a_moment_keeps_its_pod() {
    let (mut folder, now) = by_hand();
    let ms = Duration::from_millis;
    folder.listed(listing(1, &[("a", EntryKind::Regular)]), now);
    folder.read("a", bytes(&manifest("a", "x")), now);
    folder.take_set(now).unwrap();
    folder.touched("a", now);
    folder.read("a", Ok(Content::Missing), now);
    folder.gone("a", Absence::MovedAway, now);
    folder.due(now + ms(20));
    folder.touched("a", now + ms(20));
    folder.read("a", bytes(""), now + ms(20));
    folder.due(now + ms(500));
    assert!(folder.take_set(now + ms(500)).is_none(), "away, then there and empty: the pod stays");
    folder.gone("a", Absence::MovedAway, now + ms(600));
    folder.due(now + ms(625));
    assert_eq!(folder.take_set(now + ms(625)).unwrap().len(), 0);
}

#[test]
fn trouble_is_retried_once_and_then_left_to_the_watch() {
    let (mut folder, now) = by_hand();
    folder.listed(listing(1, &[("a", EntryKind::Regular)]), now);
    folder.read("a", bytes("x: ["), now);
    let retry = folder.next_due().unwrap();
    assert_eq!(retry, now + Duration::from_secs(1));
    assert_eq!(folder.due(retry), ["a"]);
    folder.read("a", bytes("x: ["), retry);
    assert_eq!(folder.next_due(), None);
    folder.touched("a", retry);
    assert_eq!(folder.due(retry), ["a"]);
    folder.read("a", bytes(&manifest("a", "x")), retry);
    assert_eq!(folder.take_set(retry).unwrap().len(), 1);
    assert!(folder.errors().is_empty());
}

#[tokio::test]
async fn a_pipe_in_the_single_files_place_keeps_the_pod() {
    let uids = Arc::new(Mutex::new(Uids::new(Box::new(Forgetful), Vec::new())));
    let mut folder = Folder::new(Path::new("/m.yaml"), NodeName::parse(NODE).unwrap().into(), uids);
    let now = Instant::now();
    assert_eq!(folder.listed(Ok(Listing::File), now), [""]);
    folder.read("", Ok(Content::Bytes(manifest("a", "x").into_bytes())), now);
    assert_eq!(folder.take_set(now).unwrap().len(), 1);

    folder.touched("m.yaml", now);
    assert_eq!(folder.due(now), [""]);
    folder.read("", Ok(Content::NotRegular), now);
    assert!(folder.take_set(now).is_none(), "the pod stays");
    let later = folder.next_due().unwrap();
    assert!(folder.relist_due(later));
    assert!(folder.listed(Ok(Listing::Other), later).is_empty());
    assert!(folder.take_set(later).is_none());
    assert_eq!(folder.errors(), ["/m.yaml is not a directory or file"]);

    // A folder in its place is followed, and its own manifests count.
    folder.read("", Ok(Content::Folder), later);
    let later = folder.next_due().unwrap();
    assert!(folder.relist_due(later));
    let entries = vec![Entry { name: "b.yaml".into(), kind: EntryKind::Regular }];
    assert_eq!(folder.listed(Ok(Listing::Folder { device: 1, entries }), later), ["b.yaml"]);
    folder.read("b.yaml", Ok(Content::Bytes(manifest("b", "x").into_bytes())), later);
    assert_eq!(text(&folder.take_set(later).unwrap()[0].metadata.name), "b-node-a");
}

#[tokio::test]
async fn a_lost_mount_keeps_pods_that_came_by_the_watch() {
    let uids = Arc::new(Mutex::new(Uids::new(Box::new(Forgetful), Vec::new())));
    let mut folder = Folder::new(Path::new("/m"), NodeName::parse(NODE).unwrap().into(), uids);
    let now = Instant::now();
    let empty = |device| Ok(Listing::Folder { device, entries: Vec::new() });
    assert!(folder.listed(empty(1), now).is_empty());
    assert_eq!(folder.take_set(now).unwrap().len(), 0);
    folder.touched("a.yaml", now);
    assert_eq!(folder.due(now), ["a.yaml"]);
    folder.read("a.yaml", Ok(Content::Bytes(manifest("a", "x").into_bytes())), now);
    assert_eq!(folder.take_set(now).unwrap().len(), 1);

    folder.listed(empty(2), now);
    assert!(folder.take_set(now).is_none(), "unmounted: the pod stays");
    assert!(folder.errors()[0].contains("on another file system than before"));
    folder.listed(empty(1), now);
    assert_eq!(folder.take_set(now).unwrap().len(), 0, "emptied where it was: a decision");
}
