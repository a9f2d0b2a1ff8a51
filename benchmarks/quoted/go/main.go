// The shop, written with the Go SDK and go-redis: sessionless, with answers in JSON.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/redis/go-redis/v9"
)

const popular = "shop:popular"

var (
	api   = os.Getenv("API_URL")
	store *redis.Client
	// A connection for each user: the default keeps two, and would make the others anew.
	client = &http.Client{Transport: &http.Transport{MaxIdleConns: 100, MaxIdleConnsPerHost: 100}}
)

type product struct {
	ID             int     `json:"id"`
	SKU            string  `json:"sku"`
	Name           string  `json:"name"`
	Price          float64 `json:"price"`
	Rating         float64 `json:"rating"`
	PopularityRank int     `json:"popularity_rank"`
}

type item struct {
	ProductID int `json:"product_id"`
	Quantity  int `json:"quantity"`
}

type search struct {
	Category string  `json:"category"`
	MinPrice float64 `json:"min_price"`
	MaxPrice float64 `json:"max_price"`
	Limit    int     `json:"limit"`
}

type user struct {
	UserID string `json:"user_id"`
}

type purchase struct {
	UserID string `json:"user_id"`
	Items  []item `json:"items"`
}

func ask(ctx context.Context, method, path string, body []byte, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, api+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, answer)
}

// both runs two functions at once, and returns the error of the first that failed.
func both(one, other func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- one() }()
	err := other()
	if first := <-ended; first != nil {
		return first
	}
	return err
}

func say(value any) (*mcp.CallToolResult, any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(data)}}}, nil, nil
}

func searchProducts(ctx context.Context, _ *mcp.CallToolRequest, asked search) (*mcp.CallToolResult, any, error) {
	var members []string
	var answer struct {
		TotalFound int       `json:"total_found"`
		Products   []product `json:"products"`
	}
	query := url.Values{
		"category":  {asked.Category},
		"min_price": {strconv.FormatFloat(asked.MinPrice, 'f', -1, 64)},
		"max_price": {strconv.FormatFloat(asked.MaxPrice, 'f', -1, 64)},
		"limit":     {strconv.Itoa(asked.Limit)},
	}
	err := both(
		func() (err error) { members, err = store.ZRevRange(ctx, popular, 0, 9).Result(); return },
		func() error { return ask(ctx, "GET", "/products/search?"+query.Encode(), nil, &answer) },
	)
	if err != nil {
		return nil, nil, err
	}
	ids := make([]int, len(members))
	ranks := make(map[int]int, len(members))
	for index, member := range members {
		_, number, _ := strings.Cut(member, ":")
		if ids[index], err = strconv.Atoi(number); err != nil {
			return nil, nil, err
		}
		ranks[ids[index]] = index + 1
	}
	for index := range answer.Products {
		answer.Products[index].PopularityRank = ranks[answer.Products[index].ID]
	}
	return say(map[string]any{
		"category": asked.Category, "total_found": answer.TotalFound, "products": answer.Products, "top10_popular_ids": ids,
	})
}

func getUserCart(ctx context.Context, _ *mcp.CallToolRequest, asked user) (*mcp.CallToolResult, any, error) {
	kept, err := store.HGetAll(ctx, "shop:cart:"+asked.UserID).Result()
	if err != nil {
		return nil, nil, err
	}
	var items []item
	if err = json.Unmarshal([]byte(kept["items"]), &items); err != nil {
		return nil, nil, err
	}
	total, err := strconv.ParseFloat(kept["total"], 64)
	if err != nil {
		return nil, nil, err
	}
	var first map[string]any
	var lines []string
	err = both(
		func() (err error) {
			lines, err = store.LRange(ctx, "shop:history:"+asked.UserID, 0, 4).Result()
			return
		},
		func() error { return ask(ctx, "GET", fmt.Sprintf("/products/%d", items[0].ProductID), nil, &first) },
	)
	if err != nil {
		return nil, nil, err
	}
	history := make([]map[string]any, len(lines))
	for index, line := range lines {
		if err = json.Unmarshal([]byte(line), &history[index]); err != nil {
			return nil, nil, err
		}
	}
	cart := map[string]any{"items": items, "item_count": len(items), "estimated_total": total}
	return say(map[string]any{"user_id": asked.UserID, "cart": cart, "recent_history": history})
}

func checkout(ctx context.Context, _ *mcp.CallToolRequest, asked purchase) (*mcp.CallToolResult, any, error) {
	_, digits, _ := strings.Cut(asked.UserID, "-")
	number, err := strconv.Atoi(digits)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now().Unix()
	order, err := json.Marshal(map[string]any{
		"order_id": fmt.Sprintf("ORD-%s-%d", asked.UserID, now), "items": asked.Items, "ts": now,
	})
	if err != nil {
		return nil, nil, err
	}
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, nil, err
	}
	var bill struct {
		OrderID string  `json:"order_id"`
		Total   float64 `json:"total"`
	}
	pipeline := store.Pipeline()
	count := pipeline.Incr(ctx, fmt.Sprintf("shop:limit:user-%05d", number%100))
	pipeline.RPush(ctx, "shop:history:"+asked.UserID, order)
	pipeline.ZIncrBy(ctx, popular, 1, fmt.Sprintf("product:%d", asked.Items[0].ProductID))
	err = both(
		func() error { _, err := pipeline.Exec(ctx); return err },
		func() error { return ask(ctx, "POST", "/cart/calculate", body, &bill) },
	)
	if err != nil {
		return nil, nil, err
	}
	return say(map[string]any{
		"order_id": bill.OrderID, "user_id": asked.UserID, "total": bill.Total, "items_count": len(asked.Items),
		"rate_limit_count": count.Val(), "status": "confirmed",
	})
}

func main() {
	options, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		panic(err)
	}
	store = redis.NewClient(options)
	server := mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "search_products", Description: "Search for products."}, searchProducts)
	mcp.AddTool(server, &mcp.Tool{Name: "get_user_cart", Description: "Return the cart of a user."}, getUserCart)
	mcp.AddTool(server, &mcp.Tool{Name: "checkout", Description: "Buy these items."}, checkout)
	handler := mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true},
	)
	http.Handle("/mcp", handler)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	marks, err := strconv.Atoi(os.Getenv("BENCHMARK_MARKS"))
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(os.NewFile(uintptr(marks), "marks"), "p%d\n", listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, nil))
}
