//! A model of a DRA driver with its registrar, as the kubeletplugin helper of `k8s.io/dynamic-resource-allocation` makes them: it looks
//! the claim up itself, one call at a time is worked on, calls may be repeated, and what is prepared outlives it. Each time that a claim
//! is prepared anew its devices have other names.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_csi::registration::v1 as registration;
use bulkhead_dra::v1;
use bulkhead_dra::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

use crate::claims::{Given, endpoint};
use crate::claims_schedule::{Dra, DraFault};
use crate::world::{Command, Shared, World};

type Answer<T> = Result<Response<T>, Status>;

/// What came of each claim, by its uid: devices, or what is wrong.
type Results = Vec<(String, Result<Vec<Given>, String>)>;

/// One life of it.
#[derive(Debug, Clone)]
pub struct Model {
    pub world: Shared,
    pub driver: Dra,
    /// One call at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Serves until it is dropped.
pub async fn serve(world: Shared, driver: Dra, listener: std::os::unix::net::UnixListener) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let model = Model { world, driver, turn: Arc::default() };
    let server = tonic::transport::Server::builder()
        .add_service(registration::registration_server::RegistrationServer::new(model.clone()))
        .add_service(DraPluginServer::new(model));
    // It ends with the process.
    let _ = server.serve_with_incoming(UnixListenerStream::new(listener)).await;
}

fn pause(milliseconds: u64) -> tokio::time::Sleep {
    tokio::time::sleep(Duration::from_millis(milliseconds))
}

/// What it does with one claim.
type Act = fn(&mut World, Dra, &v1::Claim) -> Vec<Given>;

impl Model {
    /// A call of the kubelet. What was begun is finished, whoever waits for it.
    async fn call(&self, method: &'static str, claims: Vec<v1::Claim>) -> Result<Results, Status> {
        let waits = Arc::new(());
        let waited_for = Arc::downgrade(&waits);
        let model = self.clone();
        let work = tokio::spawn(async move {
            let turn = model.turn.clone().lock_owned().await;
            let is_waited_for = || waited_for.strong_count() > 0;
            let (done, back) = model.work(method, &claims, &is_waited_for).await;
            drop(turn);
            match back {
                Some(back) => pause(back).await,
                None => std::future::pending().await,
            }
            done
        });
        let done = work.await;
        drop(waits);
        done.unwrap_or_else(|_| Err(Status::unavailable("the driver is gone")))
    }

    /// What came of it, and how long the answer is under way; `None`: it never comes.
    async fn work(
        &self,
        method: &'static str,
        claims: &[v1::Claim],
        is_waited_for: &(impl Fn() -> bool + Send + Sync),
    ) -> (Result<Results, Status>, Option<u64>) {
        let (there, back, fault) = {
            let mut world = self.world.lock();
            // What nobody waits for when its turn comes is mostly not begun, and now and then all the same.
            if !is_waited_for() && world.dice.percent(70) {
                return (Err(Status::cancelled("nobody waits for it")), None);
            }
            let (there, back) = world.latency(crate::schedule::Peer::Volnetd);
            let fault = world.claims.take_fault(self.driver);
            if let Some(DraFault::PodGoes { force, .. }) = fault {
                let noted = world.noted_claims();
                let pods = claims.iter().filter_map(|claim| noted.get(&claim.uid)).flat_map(|noted| &noted.pods);
                let going: Vec<_> = pods.map(|pod| (pod.clone(), force)).collect();
                world.claims.going.extend(going);
            }
            (there, back, fault)
        };
        let late = match fault {
            Some(DraFault::Late { by } | DraFault::PodGoes { by, .. }) => by,
            _ => 0,
        };
        pause(there + late).await;
        let mut world = self.world.lock();
        let names = claims.iter().map(|claim| claim.name.as_str()).collect::<Vec<_>>().join(" ");
        let refusal = match fault {
            Some(DraFault::Fails { code }) => Some(Status::new(Code::from_i32(code), "refused by the simulation")),
            Some(DraFault::Dies { done: false, .. } | DraFault::SyncdDies { done: false }) => {
                Some(Status::unavailable("somebody is dead"))
            }
            _ => None,
        };
        let did = match refusal {
            Some(refusal) => Err(refusal),
            None if fault == Some(DraFault::Refuses) => {
                let refused = |claim: &v1::Claim| (claim.uid.clone(), Err("refused by the simulation".to_owned()));
                Ok(claims.iter().map(refused).collect())
            }
            None => self.act(&mut world, method, claims, is_waited_for()),
        };
        let how = match &did {
            Ok(_) if fault == Some(DraFault::Refuses) => "refuses to do".to_owned(),
            Ok(_) => "does".to_owned(),
            Err(status) => format!("does not ({}) do", status.message()),
        };
        world.tell(self.driver.short(), format!("{how} {method} {names}"));
        world.coverage.call(&format!("{method} {:?}", did.as_ref().err().map_or(Code::Ok, Status::code)));
        let answers = self.answers(&mut world, fault, method, &names);
        drop(world);
        let told = match fault {
            Some(DraFault::Skips) => did.map(|mut results| {
                results.pop();
                results
            }),
            _ => did,
        };
        (told, answers.then_some(back))
    }

    /// Whether the answer comes.
    fn answers(&self, world: &mut World, fault: Option<DraFault>, method: &str, names: &str) -> bool {
        let who = self.driver.short();
        match fault {
            Some(DraFault::Dies { down, .. }) => {
                world.tell(who, format!("dies before it has answered {method} {names}"));
                world.commands.push(Command::KillDra { driver: self.driver, down });
                false
            }
            Some(DraFault::SyncdDies { .. }) => {
                world.tell(who, format!("kubelet-syncd dies before it has the answer to {method} {names}"));
                world.commands.push(Command::KillSyncd { down: 100 });
                false
            }
            Some(DraFault::AnswerLost) => {
                world.tell(who, format!("the answer to {method} {names} is lost"));
                false
            }
            _ => true,
        }
    }

    fn act(
        &self,
        world: &mut World,
        method: &str,
        claims: &[v1::Claim],
        is_waited_for: bool,
    ) -> Result<Results, Status> {
        let prepares = method == PREPARE;
        for claim in claims.iter().filter(|_| is_waited_for) {
            match prepares {
                true => world.check_prepare(self.driver, &claim.uid),
                false => world.check_unprepare(self.driver, &claim.uid),
            }
        }
        if prepares {
            // As the helper, which looks claims up first and fails as a whole.
            for claim in claims {
                let mut objects = world.claims.objects.iter();
                let why = match objects.find(|(_, object)| object.name == claim.name && !object.is_gone) {
                    None => "not found",
                    Some((_, object)) if !object.is_allocated => "not allocated",
                    Some((uid, _)) if *uid != claim.uid => "got replaced",
                    Some(_) => continue,
                };
                return Err(Status::unknown(format!("claim {}/{} {why}", claim.namespace, claim.name)));
            }
        }
        let act: Act = if prepares { prepare } else { unprepare };
        Ok(claims.iter().map(|claim| (claim.uid.clone(), Ok(act(world, self.driver, claim)))).collect())
    }
}

const PREPARE: &str = "NodePrepareResources";
const UNPREPARE: &str = "NodeUnprepareResources";

fn prepare(world: &mut World, driver: Dra, claim: &v1::Claim) -> Vec<Given> {
    let key = (driver, claim.uid.clone());
    if let Some(given) = world.claims.prepared.get(&key) {
        return given.clone();
    }
    let Some(kind) = world.claims.objects.get(&claim.uid).map(|object| object.kind) else { return Vec::new() };
    let round = world.next_id("");
    let requests = kind.requests().into_iter().filter(|(_, of)| *of == driver);
    let given: Vec<Given> = requests
        .map(|(request, _)| {
            let device = format!("{}-{request}", claim.name);
            let cdi = |part: &str| format!("{}/claim={device}-{round}{part}", driver.name());
            match driver {
                Dra::One => Given { requests: vec![request.to_owned()], cdi: vec![cdi("")], device },
                // It says of no request that its device is for it, so it is for all of them.
                Dra::Two => Given { requests: Vec::new(), cdi: vec![cdi("-x"), cdi("-y")], device },
            }
        })
        .collect();
    world.claims.prepared.insert(key, given.clone());
    given
}

fn unprepare(world: &mut World, driver: Dra, claim: &v1::Claim) -> Vec<Given> {
    world.claims.prepared.remove(&(driver, claim.uid.clone()));
    Vec::new()
}

#[tonic::async_trait]
impl registration::registration_server::Registration for Model {
    async fn get_info(&self, _: Request<registration::InfoRequest>) -> Answer<registration::PluginInfo> {
        Ok(Response::new(registration::PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.driver.name().to_owned(),
            endpoint: endpoint(self.driver),
            supported_versions: vec![v1::SERVICE.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<registration::RegistrationStatus>,
    ) -> Answer<registration::RegistrationStatusResponse> {
        let told = request.into_inner();
        let what =
            if told.plugin_registered { "is registered".to_owned() } else { format!("is refused: {}", told.error) };
        self.world.lock().tell(self.driver.short(), what);
        Ok(Response::new(registration::RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for Model {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Answer<v1::NodePrepareResourcesResponse> {
        let results = self.call(PREPARE, request.into_inner().claims).await?;
        let device = |given: Given| v1::Device {
            request_names: given.requests,
            pool_name: "node".to_owned(),
            device_name: given.device,
            cdi_device_ids: given.cdi,
            share_id: None,
        };
        let one = |result: Result<Vec<Given>, String>| match result {
            Ok(given) => v1::NodePrepareResourceResponse {
                devices: given.into_iter().map(device).collect(),
                error: String::new(),
            },
            Err(error) => v1::NodePrepareResourceResponse { devices: Vec::new(), error },
        };
        let claims = results.into_iter().map(|(uid, result)| (uid, one(result))).collect();
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Answer<v1::NodeUnprepareResourcesResponse> {
        let results = self.call(UNPREPARE, request.into_inner().claims).await?;
        let one = |result: Result<Vec<Given>, String>| v1::NodeUnprepareResourceResponse {
            error: result.err().unwrap_or_default(),
        };
        let claims = results.into_iter().map(|(uid, result)| (uid, one(result))).collect();
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims }))
    }
}
