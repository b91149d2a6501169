//! Upstream's end-to-end specs against a node of the lab, and what they say beside upstream's own kubelet.

mod controllers;
mod images;
mod machine_facts;
mod programs;
mod specs;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use bulkhead_testkit::conformance::{Comparison, Header, Outcome, PassedList, Report};
use bulkhead_testkit::node::HEALTHZ_PORT;
use bulkhead_testkit::wait::{self, LONG, eventually};
use bulkhead_testkit::{Cluster, Lab, Node, build, machine};
use serde_json::{Value, json};

use self::controllers::{Controllers, last_lines};
use self::images::{FailedPulls, Sources};
use self::programs::Programs;
use self::specs::{Asked, Selection};
use crate::interrupt;

const NODE: &str = "conformance";

/// What the command line asks for.
#[derive(Debug)]
pub struct Options {
    pub asked: Asked,
    /// Another kubelet than the project's own.
    pub kubelet: Option<PathBuf>,
    /// cargo profile of the project's own.
    pub profile: String,
    /// Where the node's root directory is mounted, if not in the lab's folder.
    pub root_dir: Option<PathBuf>,
    pub images: Sources,
    pub list: PathBuf,
    /// Write the list instead of comparing with it.
    pub record: bool,
    pub output: PathBuf,
}

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    /// A file that does not exist.
    pub fn of(matches: &clap::ArgMatches) -> Result<Self> {
        let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
        let path = |name: &str| matches.get_one::<String>(name).map(PathBuf::from);
        let archives = matches.get_many::<String>("images").into_iter().flatten();
        Ok(Self {
            asked: Asked {
                focus: matches.get_one("focus").cloned(),
                skip: matches.get_one("skip").cloned(),
                processes: matches.get_one::<u16>("procs").copied().unwrap_or(8),
            },
            kubelet: path("kubelet").map(|kubelet| images::existing(&kubelet)).transpose().context("--kubelet")?,
            profile: text("profile"),
            root_dir: path("root-dir"),
            images: Sources {
                archives: archives
                    .map(|archive| images::existing(Path::new(archive)))
                    .collect::<Result<_>>()
                    .context("--images")?,
                command: matches.get_one::<String>("images-command").cloned(),
                device_plugin: matches.get_flag("device-plugin"),
            },
            list: path("list").unwrap_or_else(|| build::workspace_root().join(crate::CONFORMANCE_LIST)),
            record: matches.get_flag("record"),
            output: path("output").unwrap_or_else(|| build::target_dir().join("conformance")),
        })
    }
}

/// Runs the specs and says what differs.
///
/// # Errors
/// Something that upstream's kubelet passes fails here, or the run was not possible or was cut short.
pub fn run(options: &Options) -> Result<()> {
    if !machine::is_root() {
        bail!(
            "the specs need root: the node makes network namespaces, cgroups and mounts; run it as root or with sudo"
        );
    }
    let _signals = interrupt::listen()?;
    let programs = Programs::find()?;
    let list = if options.record { None } else { Some(read_list(&options.list)?) };
    std::fs::create_dir_all(&options.output).with_context(|| format!("creating {}", options.output.display()))?;
    let began = Instant::now();
    let step = |what: &str| println!("[{:.0} s] {what}", began.elapsed().as_secs_f64());

    if options.kubelet.is_none() && std::env::var_os("BULKHEAD_BIN_DIR").is_none() {
        step(&format!("build: the node ({} profile)", options.profile));
        build::use_programs(&build::programs(&options.profile)?)?;
    }
    machine::ensure_installed(&|line| println!("   {line}"))?;
    let lab = Lab::start_beside()?;
    let folder = lab.folder();
    let selection = options.asked.selection(list.as_ref().map(|list| &list.header));
    let ran = in_lab(options, &selection, &programs, &lab, &step);
    let cut_short = ran.is_err() && wait::interrupted();
    if let Err(error) = keep_logs(&lab, &options.output) {
        eprintln!("{error:#}");
    }
    // From here on a second Ctrl-C must not cut the clean-up short.
    wait::resume();
    drop(lab);
    if folder.exists() {
        eprintln!("{} could not be removed", folder.display());
    }
    if cut_short {
        bail!("interrupted; everything is taken down");
    }
    println!("   everything is taken down; logs and reports are in {}", options.output.display());
    let run = ran?;
    run.tell(options, list.as_ref())
}

fn read_list(path: &Path) -> Result<PassedList> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the list {} (--record with --kubelet writes one)", path.display()))?;
    PassedList::parse(&text).with_context(|| format!("the list {}", path.display()))
}

/// What came of it.
struct Run {
    report: Report,
    header: Header,
    took: std::time::Duration,
    not_pulled: std::collections::BTreeSet<String>,
}

fn in_lab(
    options: &Options,
    selection: &Selection,
    programs: &Programs,
    lab: &Lab,
    step: &dyn Fn(&str),
) -> Result<Run> {
    let say = |line: &str| println!("   {line}");
    step(&format!("runtime: containerd in the network namespace {}", lab.netns().name()));
    images::provide(lab, programs, &options.images, &say)?;
    step("control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy");
    let cluster = lab.cluster()?;
    let mut controllers = Controllers::start(lab, &cluster, programs)?;
    let name = options.kubelet.as_ref().map_or("this project's kubelet".to_owned(), |path| path.display().to_string());
    step(&format!("node: {name}"));
    let node = start_node(options, lab, &cluster)?;
    let ready = cluster.wait_for("nodes", "", NODE, "the node is Ready and free of taints", is_ready);
    let ready = ready.with_context(|| format!("the node's log ends:\n{}", last_lines(&node.log(), 20)));
    let ran = ready.and_then(|_| controllers.check()).and_then(|()| {
        let header = machine_facts::header(&node, lab, programs, selection)?;
        step(&format!("specs: {:?} without {:?}", selection.focus, selection.skip));
        let pulls = FailedPulls::listen(&cluster, programs)?;
        let began = Instant::now();
        let report = specs::run(programs, &cluster.admin_kubeconfig()?, selection, &options.output);
        let (took, not_pulled) = (began.elapsed(), pulls.finish());
        Ok(Run { report: report?, header, took, not_pulled })
    });
    if wait::interrupted() {
        // The lab takes it down with all else.
        node.abandon();
    } else {
        end_node(node, options, &cluster, ran.is_ok());
    }
    ran
}

/// Copies the logs of the lab, which goes away, to where the user finds them.
fn keep_logs(lab: &Lab, output: &Path) -> Result<()> {
    let folders = [lab.folder().join("cluster"), lab.folder().join("nodes").join(NODE)];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let logs = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|one| one == "log"));
    for log in logs.chain([lab.containerd().log()]) {
        let kept = output.join(log.file_name().context("a log without a name")?);
        std::fs::copy(&log, &kept).with_context(|| format!("copying {} to {}", log.display(), kept.display()))?;
    }
    Ok(())
}

fn start_node(options: &Options, lab: &Lab, cluster: &Cluster) -> Result<Node> {
    let plugins = lab.folder().join("volume-plugins");
    let node = lab.node(NODE);
    let node = if let Some(path) = &options.root_dir { node.root_dir(path) } else { node };
    let builder = node
        .joins(cluster)?
        .config("volumePluginDir", json!(plugins))
        // On a full disk, images that nobody uses at the moment would go, the sandbox's among them, and do not come again.
        .config("imageGCHighThresholdPercent", json!(100))
        .config("imageGCLowThresholdPercent", json!(99));
    let Some(kubelet) = &options.kubelet else { return builder.start() };
    // Under the name by which the lab knows a node's processes, whatever the file is called.
    let folder = lab.folder().join("kubelet-under-test");
    std::fs::create_dir_all(&folder)?;
    std::os::unix::fs::symlink(kubelet, folder.join("kubelet")).context("linking the kubelet into the lab")?;
    let mut node = builder.programs(&folder).prepare()?;
    if let Some(path) = &options.root_dir {
        // Upstream's kubelet would bind the folder over itself, and of the two mounts containerd 1.6 looks at the private one.
        machine::run("mount", &["--make-rshared", &path.display().to_string()])?;
    }
    node.launch()?;
    let ended = eventually("the kubelet is healthy", LONG, || {
        if node.all_pids().is_empty() {
            return Ok(true);
        }
        let (status, body) = node.http_get(IpAddr::V4(Ipv4Addr::LOCALHOST), HEALTHZ_PORT, "/healthz")?;
        if status == 200 { Ok(false) } else { bail!("healthz says {status}: {body}") }
    });
    match ended {
        Ok(false) => Ok(node),
        Ok(true) => {
            let log = last_lines(&node.log(), 20);
            node.abandon();
            bail!("{} ended; its log ends:\n{log}", kubelet.display())
        }
        Err(error) => {
            let log = last_lines(&node.log(), 20);
            node.abandon();
            Err(error).with_context(|| format!("its log ends:\n{log}"))
        }
    }
}

/// The project's own node is ended in order, and what it leaves behind is told. Another kubelet is simply killed.
fn end_node(node: Node, options: &Options, cluster: &Cluster, in_order: bool) {
    if options.kubelet.is_some() || !in_order {
        node.abandon();
        return;
    }
    // Namespaces of specs go away after their specs, and pods with them.
    let gone = eventually("the pods of the specs are gone", LONG, || {
        let left = cluster.list("pods", None)?;
        if left.is_empty() { Ok(()) } else { bail!("{} pods", left.len()) }
    });
    if let Err(error) = gone {
        eprintln!("   {error:#}");
        node.abandon();
    } else if let Err(error) = node.finish() {
        eprintln!("   not as it should be when the node ended: {error:#}");
    }
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
    ready && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
}

impl Run {
    fn tell(&self, options: &Options, list: Option<&PassedList>) -> Result<()> {
        let count = |outcome| self.report.count(outcome);
        println!(
            "\n{} specs in {} min {} s: {} passed, {} failed, {} skipped themselves",
            self.report.specs.len(),
            self.took.as_secs() / 60,
            self.took.as_secs() % 60,
            count(Outcome::Passed),
            count(Outcome::Failed),
            count(Outcome::Skipped)
        );
        if !self.not_pulled.is_empty() {
            println!("\nImages that the node could not pull, so that specs failed; give them with --images:");
            self.not_pulled.iter().for_each(|image| println!("   {image}"));
        }
        match list {
            None => {
                let text = PassedList::of(self.header.clone(), &self.report).to_text();
                std::fs::write(&options.list, text).with_context(|| format!("writing {}", options.list.display()))?;
                self.tell_all("Failed, and so not on the list", &self.names(Outcome::Failed));
                println!("\nwritten: {}", options.list.display());
                Ok(())
            }
            Some(list) => self.compare(options, list),
        }
    }

    fn names(&self, outcome: Outcome) -> Vec<String> {
        let all = self.report.specs.iter().filter(|(_, spec)| spec.outcome == outcome);
        all.map(|(name, _)| name.clone()).collect()
    }

    fn compare(&self, options: &Options, list: &PassedList) -> Result<()> {
        let shown = options.list.strip_prefix(build::workspace_root()).unwrap_or(&options.list).display();
        println!("\nCompared with {shown}, {} specs that upstream's kubelet passed, recorded on:", list.specs.len());
        for (name, value) in &list.header.fields {
            let here = self.header.get(name).filter(|here| here != value);
            let here = here.map(|here| format!("   (here: {here})")).unwrap_or_default();
            println!("   {name}: {value}{here}");
        }
        let comparison = list.compare(&self.report);
        let Comparison { same, worse, better, failed_unlisted } = &comparison;
        self.tell_all("Fails here, and upstream's kubelet passes", worse);
        self.tell_all("Passes here, and is not on the list", better);
        self.tell_all(
            "Fails here, and is not on the list: upstream's kubelet failed it or was not asked",
            failed_unlisted,
        );
        println!("\n{same} specs pass as with upstream's kubelet, {} do not", worse.len());
        if !comparison.is_conformant() {
            bail!("{} specs that upstream's kubelet passes do not pass here", worse.len());
        }
        Ok(())
    }

    fn tell_all(&self, title: &str, names: &[String]) {
        if names.is_empty() {
            return;
        }
        println!("\n{title} ({}):", names.len());
        for name in names {
            println!("   {name}");
            let spec = self.report.specs.get(name);
            if let Some(spec) = spec.filter(|spec| spec.outcome != Outcome::Passed) {
                let skipped = if spec.outcome == Outcome::Skipped { "skipped itself: " } else { "" };
                // The first lines say what was expected; the whole is in the report.
                for (index, line) in spec.message.lines().filter(|line| !line.trim().is_empty()).take(3).enumerate() {
                    println!("      {}{line}", if index == 0 { skipped } else { "" });
                }
            }
        }
    }
}
