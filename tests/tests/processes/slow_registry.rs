//! A registry that never answers holds up the pulls from itself alone; what an operator sees of that, and what a restart of
//! kubelet-syncd remembers of a pull that failed; and how many are pulled at once.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{LONG, Lab, Node, Pod, eventually};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// Something in the lab's network that listens where images come from. Ends with the test.
struct Registry {
    requests: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    address: &'static str,
}

impl Registry {
    /// `answer`: to each request; None: never.
    fn start(lab: &Lab, address: &'static str, answer: Option<&'static str>) -> Result<Self> {
        let listener = lab.netns().run(|| Ok(TcpListener::bind(address)?)).context(address)?;
        listener.set_nonblocking(true)?;
        let registry = Registry { requests: Arc::default(), over: Arc::default(), address };
        let (requests, over) = (registry.requests.clone(), registry.over.clone());
        std::thread::spawn(move || {
            let mut held: Vec<TcpStream> = Vec::new();
            while !over.load(Ordering::Relaxed) {
                match (listener.accept(), answer) {
                    (Ok((mut client, _)), Some(answer)) => {
                        let _ = client.set_nonblocking(false);
                        if client.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                            requests.fetch_add(1, Ordering::Relaxed);
                            let _ = client.write_all(answer.as_bytes());
                        }
                    }
                    (Ok((client, _)), None) => {
                        requests.fetch_add(1, Ordering::Relaxed);
                        held.push(client);
                    }
                    // Nobody has come.
                    (Err(_), _) => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        });
        Ok(registry)
    }

    fn image(&self, name: &str) -> String {
        format!("{}/{name}:1", self.address)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn write(node: &Node, name: &str, image: &str) -> Result<()> {
    let pod = Pod::idle(name).container_field("image", json!(image));
    node.write(&pod.container_field("imagePullPolicy", json!("Always")))
}

/// What `kubelet-ctl images` says of the pull of an image.
fn pull(node: &Node, image: &str) -> Result<Value> {
    let all: Value = serde_json::from_str(&node.ctl(&["images", "-o", "json"])?)?;
    let found = all["pulls"].as_array().into_iter().flatten().find(|pull| pull["image"] == image);
    found.cloned().with_context(|| format!("{image} is not pulled: {}", all["pulls"]))
}

fn in_stage(node: &Node, image: &str, stage: &str) -> Result<Value> {
    eventually(&format!("{image} is {stage}"), LONG, || {
        let pull = pull(node, image)?;
        ensure!(pull["stage"] == stage, "{pull}");
        Ok(pull)
    })
}

#[test]
fn as_many_are_pulled_at_once_as_the_configuration_says() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let slow = Registry::start(&lab, "127.0.0.1:5001", None)?;
    let builder = lab.node("alpha").config("serializeImagePulls", json!(false));
    let node = builder.config("maxParallelImagePulls", json!(2)).start()?;
    let images = ["first", "second", "third"].map(|name| (name, slow.image(name)));
    for (name, image) in &images {
        write(&node, name, image)?;
    }
    let two_of_three = || {
        let mut stages = Vec::new();
        for (_, image) in &images {
            stages.push(pull(&node, image)?["stage"].as_str().unwrap_or_default().to_owned());
        }
        stages.sort();
        ensure!(stages == ["pulling", "pulling", "queued"], "{stages:?}");
        Ok(())
    };
    eventually("two are pulled, and the third waits", LONG, two_of_three)?;
    eventually("the registry is asked for both", LONG, || {
        ensure!(slow.requests() >= 2, "{}", slow.requests());
        Ok(())
    })?;
    holds_for("two are pulled, and the third waits", Duration::from_secs(1), two_of_three)?;
    drop(slow);
    node.finish()
}

#[test]
fn a_registry_that_never_answers_holds_up_its_own_pulls_alone() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let slow = Registry::start(&lab, "127.0.0.1:5001", None)?;
    let refusal = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let quick = Registry::start(&lab, "127.0.0.1:5002", Some(refusal))?;
    // One pull at a time is the default.
    let node = lab.node("alpha").start()?;
    let (first, second, other) = (slow.image("first"), slow.image("second"), quick.image("other"));
    write(&node, "first", &first)?;
    let pulling = in_stage(&node, &first, "pulling")?;
    ensure!(pulling["registry"] == slow.address && pulling["pod"] == node.pod_name("first"), "{pulling}");
    write(&node, "second", &second)?;
    in_stage(&node, &second, "queued")?;
    write(&node, "other", &other)?;
    let failed = in_stage(&node, &other, "back-off")?;
    let noted = Instant::now();
    ensure!(failed["error"].as_str().is_some_and(|error| error.starts_with("ErrImagePull: ")), "{failed}");
    ensure!(pull(&node, &second)?["stage"] == "queued", "its turn has not come");
    let shown = node.ctl(&["images"])?;
    for word in ["PULL", "back-off", "queued", "pulling"] {
        ensure!(shown.contains(word), "no {word}: {shown}");
    }
    let asked = quick.requests();
    ensure!(asked > 0 && slow.requests() > 0);

    // Its successor keeps what is left of the pause, or, should that be over by then, the length of the next one: an attempt
    // that forgot would be followed by a pause of the first length again.
    node.kill_daemon("kubelet-syncd")?;
    // Whose turn it is now, the order decides in which pods were found.
    eventually("the others are pulled again", LONG, || {
        let stages = [pull(&node, &first)?, pull(&node, &second)?].map(|pull| pull["stage"].clone());
        ensure!(stages.contains(&json!("pulling")) && stages.contains(&json!("queued")), "{stages:?}");
        Ok(())
    })?;
    holds_for("the pause goes on", Duration::from_secs(1), || {
        let pull = in_stage(&node, &other, "back-off")?;
        let seconds = |field: &str| pull[field].as_f64().with_context(|| format!("no {field}: {pull}"));
        let pause = seconds("forSeconds")? + seconds("retrySeconds")?;
        let since_noted = noted.elapsed().as_secs_f64();
        let is_first = pause < 15.0;
        ensure!(!is_first || seconds("forSeconds")? + 0.5 > since_noted, "forgotten, {since_noted} s later: {pull}");
        ensure!(!is_first || quick.requests() == asked, "asked again: {asked}, then {}", quick.requests());
        Ok(())
    })?;
    // Whom the slow one held up is let go of.
    drop(slow);
    node.finish()
}
