//! Stores that URLs name: connected when a table or COPY names one, with the settings of the environment.
//!
//! Registered once for each bucket or server. An HTTP client and TLS are large, so the feature `stores` adds them.

use anyhow::Result;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as SqlStatement;

/// Connects the stores that a statement names, also below EXPLAIN.
pub fn reach_locations(context: &SessionContext, statement: &SqlStatement) -> Result<()> {
    match statement {
        SqlStatement::CreateExternalTable(table) => {
            table.locations.iter().try_for_each(|location| reach(context, location))
        }
        SqlStatement::CopyTo(copy) => reach(context, &copy.target),
        SqlStatement::Explain(explained) => reach_locations(context, &explained.statement),
        _ => Ok(()),
    }
}

/// Connects the store of `location`, if it is a URL of one. Reading reports other errors of a location.
pub fn reach(context: &SessionContext, location: &str) -> Result<()> {
    let Ok(url) = ListingTableUrl::parse(location) else { return Ok(()) };
    let is_known = matches!(url.scheme(), "s3" | "s3a" | "gs" | "az" | "http" | "https");
    if !is_known || context.runtime_env().object_store(&url).is_ok() {
        return Ok(());
    }
    connect(context, location, &url.object_store())
}

#[cfg(not(feature = "stores"))]
fn connect(_context: &SessionContext, location: &str, _store: &ObjectStoreUrl) -> Result<()> {
    Err(crate::error::usage(format!(
        "{location} is in a store, and this build reads files of this machine only; build it with `cargo build --package \
         memferry-cli --features stores`, or download the file"
    )))
}

#[cfg(feature = "stores")]
fn connect(context: &SessionContext, location: &str, url: &ObjectStoreUrl) -> Result<()> {
    let store = build(url).map_err(|source| {
        crate::error::usage(format!(
            "cannot set up the store of {location}: {source}; check the URL and the variables {} of the environment",
            variables(url)
        ))
    })?;
    context.register_object_store(url.as_ref(), store);
    Ok(())
}

#[cfg(feature = "stores")]
fn scheme(url: &ObjectStoreUrl) -> &str {
    url.as_str().split(':').next().unwrap_or_default()
}

/// Names of the variables that set up a store.
#[cfg(feature = "stores")]
fn variables(url: &ObjectStoreUrl) -> &'static str {
    match scheme(url) {
        "s3" | "s3a" => "AWS_*",
        "gs" => "GOOGLE_*",
        "az" => "AZURE_*",
        _ => "HTTPS_PROXY and NO_PROXY",
    }
}

#[cfg(feature = "stores")]
fn build(url: &ObjectStoreUrl) -> object_store::Result<std::sync::Arc<dyn object_store::ObjectStore>> {
    use std::sync::Arc;

    use object_store::aws::AmazonS3Builder;
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::gcp::GoogleCloudStorageBuilder;
    use object_store::http::HttpBuilder;
    use object_store::{ClientOptions, RetryConfig};

    // A user waits: the default is ten retries in three minutes.
    let retry = RetryConfig {
        max_retries: 4,
        retry_timeout: std::time::Duration::from_secs(20),
        ..RetryConfig::default()
    };
    Ok(match scheme(url) {
        "s3" | "s3a" => {
            Arc::new(AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retry).build()?)
        }
        "gs" => {
            Arc::new(GoogleCloudStorageBuilder::from_env().with_url(url.as_str()).with_retry(retry).build()?)
        }
        "az" => Arc::new(MicrosoftAzureBuilder::from_env().with_url(url.as_str()).with_retry(retry).build()?),
        // Any server, whatever store is behind it: the path is that of the URL.
        _ => {
            let client = ClientOptions::new().with_allow_http(scheme(url) == "http");
            Arc::new(
                HttpBuilder::new()
                    .with_url(url.as_str())
                    .with_client_options(client)
                    .with_retry(retry)
                    .build()?,
            )
        }
    })
}
