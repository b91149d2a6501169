//! Images, without a registry.

use anyhow::{Context as _, Result, ensure};
use bulkhead_cri::v1;
use bulkhead_testkit::image;

use super::subject::{Subject, timed};

fn named(name: &str) -> Option<v1::ImageSpec> {
    Some(v1::ImageSpec { image: name.to_owned(), ..Default::default() })
}

/// What is not there is no error to ask for, nor to remove.
pub async fn images_that_are_there_and_not(subject: &Subject) -> Result<()> {
    let mut images = subject.images.clone();
    let absent = "example.com/absent:1";
    let request = v1::ImageStatusRequest { image: named(absent), verbose: false };
    ensure!(images.image_status(timed(request)).await?.into_inner().image.is_none());
    let request = v1::RemoveImageRequest { image: named(absent) };
    images.remove_image(timed(request)).await.context("removing what is not there")?;

    let request = v1::ImageStatusRequest { image: named(image::BUSYBOX), verbose: false };
    let known = images.image_status(timed(request)).await?.into_inner().image.context("it is not there")?;
    ensure!(
        known.repo_tags.iter().any(|tag| tag == image::BUSYBOX) && !known.id.is_empty() && known.size > 0,
        "{known:?}"
    );
    let by_id = v1::ImageStatusRequest { image: named(&known.id), verbose: false };
    let by_id = images.image_status(timed(by_id)).await?.into_inner().image.context("not by its id")?;
    ensure!(by_id == known, "{by_id:?}");
    let all = images.list_images(timed(v1::ListImagesRequest { filter: None })).await?.into_inner().images;
    ensure!(all.contains(&known), "{all:?}");

    // Containers name the image by its id.
    let pod = subject.pod("image")?;
    let sandbox = pod.sandbox().await?;
    let container = pod.create(&sandbox, "main", 0, super::subject::Does::Ignores).await?;
    let status = subject.status(&container).await?;
    ensure!(status.image_ref == known.id || known.repo_digests.contains(&status.image_ref), "{status:?} {known:?}");
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}
